package rpc

import (
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	admissionpb "github.com/keystead/keystead/proto/keystead/admission/v1"
	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	electionpb "github.com/keystead/keystead/proto/keystead/election/v1"
	grouppb "github.com/keystead/keystead/proto/keystead/group/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	oncepb "github.com/keystead/keystead/proto/keystead/once/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
	semaphorepb "github.com/keystead/keystead/proto/keystead/semaphore/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// Numbers of operations, by which nodes and metrics name them. A number stands for one
// form of request and answer for ever: what changes gets another one. Numbers below 4 are
// counted and never sent.
const (
	opPeek  = 1 // a check that changes nothing
	opNext  = 2 // of IdService
	opSpend = 3 // of a chunk; taking it is a check at the owner

	opCheck         = 4
	opAdd           = 5
	opGet           = 6
	opCompareAndSet = 7
	opReset         = 8
	opAcquire       = 9
	opRenew         = 10
	opRelease       = 11
	opInspect       = 12
	opPlant         = 14
	opReadPart      = 15
	opDelete        = 16
	opResetLimit    = 17
	opInspectKey    = 18
	opListObjects   = 19

	opGetRegister           = 24
	opPutRegister           = 25
	opCompareAndSetRegister = 26
	opDeleteRegister        = 27
	opAwaitRegister         = 28

	opAcquirePermits   = 31
	opRenewPermits     = 32
	opReleasePermits   = 33
	opVerifyPermits    = 34
	opUpdatePermits    = 35
	opDowngradePermits = 36
	opRevokePermits    = 37
	opSetCapacity      = 38
	opInspectSemaphore = 39

	opCampaign        = 48
	opRenewLeader     = 49
	opProclaim        = 50
	opResign          = 51
	opVerifyLeader    = 52
	opRevokeLeader    = 53
	opInspectElection = 54

	opBeginOnce    = 62
	opRenewOnce    = 63
	opCompleteOnce = 64
	opAbandonOnce  = 65
	opGetOnce      = 66
	opForgetOnce   = 67
	opKeepAlive    = 90 // of all that a session holds
	opEndSession   = 91

	opArrive         = 70
	opAwaitPhase     = 71
	opRegisterParty  = 72
	opRenewParty     = 73
	opLeaveBarrier   = 74
	opBreakBarrier   = 75
	opInspectBarrier = 76
	opAwaitCounter   = 77

	opAwaitElection = 96
	opAwaitGroup    = 97
	opAwaitPermits  = 98
	opAwaitLock     = 99

	opJoin         = 56
	opRenewMember  = 57
	opUpdateMember = 58
	opLeaveGroup   = 59
	opVerifyMember = 60
	opListGroup    = 61

	opVerifyLock    = 40
	opUpdateLock    = 41
	opDowngradeLock = 42
	opRevokeLock    = 43

	opAdmit            = 100
	opSettle           = 101
	opExtend           = 102
	opInspectAdmission = 103
	opPeekAdmission    = 104
	opHoldAcross       = 116 // of one key of several
	opWordAcross       = 117
	opQuestionAcross   = 118
	opAdmitAnywhere    = 119 // of what chunks pay in part, at the owner of the rest

	opSetOverride   = 110
	opClearOverride = 111
	opGetOverride   = 112

	maxOperation = 127 // numbers are indexes
)

// The operations. Their order in a line: number, method, name and outcomes in metrics,
// what does it.
var (
	limitCheck           = changes(opCheck, "Check", "check", "allowed", "denied", (*Server).check).peeking(limitPeek, (*limitpb.CheckRequest).GetPeek).dividing(checkDivides).summing(peekSums, sumOfPeeks).fronted((*Server).frontCheck)
	limitReset           = changes(opResetLimit, "Reset", "reset_limit", "reset", "full", (*Server).resetLimit).since(owner.DeleteLevel)
	limitSetOverride     = changes(opSetOverride, "SetOverride", "set_override", "replaced", "set", (*Server).setOverride).since(owner.OverrideLevel)
	limitClearOverride   = changes(opClearOverride, "ClearOverride", "clear_override", "cleared", "absent", (*Server).clearOverride).since(owner.OverrideLevel)
	limitGetOverride     = reads(opGetOverride, "GetOverride", "get_override", "answered", "absent", (*Server).getOverride).dividing(always[limitpb.GetOverrideRequest]).since(owner.OverrideLevel)
	limitPeek            = counted(opPeek, "peek", "allowed", "denied")
	limitSpend           = counted(opSpend, "check_anywhere", "allowed", "denied")
	counterAdd           = changes(opAdd, "Add", "add", "applied", "refused", (*Server).add).dividing(addDivides)
	counterGet           = reads(opGet, "Get", "get", "answered", "absent", (*Server).get).dividing(getDivides).summing(getDivides, sumOfParts)
	counterCompareAndSet = changes(opCompareAndSet, "CompareAndSet", "compare_and_set", "applied", "refused", (*Server).compareAndSet)
	counterReset         = changes(opReset, "Reset", "reset", "applied", "absent", (*Server).reset)
	counterDelete        = changes(opDelete, "Delete", "delete", "deleted", "absent", (*Server).deleteCounter).since(owner.DeleteLevel)
	lockAcquire          = waits(opAcquire, "Acquire", "acquire", "acquired", "held", (*Server).acquire, ungrant, addWaited)
	lockRenew            = changes(opRenew, "Renew", "renew", "renewed", "gone", (*Server).renew)
	lockRelease          = changes(opRelease, "Release", "release", "released", "gone", (*Server).release)
	lockInspect          = reads(opInspect, "Inspect", "inspect", "held", "free", (*Server).inspect)
	lockVerify           = reads(opVerifyLock, "Verify", "verify", "held", "gone", (*Server).verifyLock).since(owner.LockLevel)
	lockUpdate           = changes(opUpdateLock, "Update", "update", "updated", "gone", (*Server).updateLock).since(owner.LockLevel)
	lockDowngrade        = changes(opDowngradeLock, "Downgrade", "downgrade", "downgraded", "gone", (*Server).downgradeLock).since(owner.LockLevel)
	lockRevoke           = changes(opRevokeLock, "Revoke", "revoke", "revoked", "gone", (*Server).revokeLock).since(owner.LockLevel)
	lockAwait            = awaits(opAwaitLock, "await_lock", "changed", "same", (*Server).awaitLock).since(owner.WatchLevel)
	registerGet          = reads(opGetRegister, "Get", "get_register", "answered", "absent", (*Server).getRegister).since(owner.RegisterLevel)
	registerPut          = changes(opPutRegister, "Put", "put_register", "applied", "refused", (*Server).putRegister).since(owner.RegisterLevel)
	registerCAS          = changes(opCompareAndSetRegister, "CompareAndSet", "compare_and_set_register", "applied", "refused", (*Server).compareAndSetRegister).since(owner.RegisterLevel)
	registerDelete       = changes(opDeleteRegister, "Delete", "delete_register", "deleted", "absent", (*Server).deleteRegister).since(owner.RegisterLevel)
	registerAwait        = awaits(opAwaitRegister, "await_register", "changed", "same", (*Server).awaitRegister).since(owner.RegisterLevel)
	semaphoreAcquire     = waits(opAcquirePermits, "Acquire", "acquire_permits", "acquired", "refused", (*Server).acquirePermits, ungrantPermits, addPermitsWaited).since(owner.SemaphoreLevel)
	semaphoreRenew       = changes(opRenewPermits, "Renew", "renew_permits", "renewed", "gone", (*Server).renewPermits).since(owner.SemaphoreLevel)
	semaphoreRelease     = changes(opReleasePermits, "Release", "release_permits", "released", "gone", (*Server).releasePermits).since(owner.SemaphoreLevel)
	semaphoreVerify      = reads(opVerifyPermits, "Verify", "verify_permits", "held", "gone", (*Server).verifyPermits).since(owner.SemaphoreLevel)
	semaphoreUpdate      = changes(opUpdatePermits, "Update", "update_permits", "updated", "gone", (*Server).updatePermits).since(owner.SemaphoreLevel).keysSince(owner.LockLevel)
	semaphoreDowngrade   = changes(opDowngradePermits, "Downgrade", "downgrade_permits", "downgraded", "refused", (*Server).downgradePermits).since(owner.SemaphoreLevel)
	semaphoreRevoke      = changes(opRevokePermits, "Revoke", "revoke_permits", "revoked", "gone", (*Server).revokePermits).since(owner.SemaphoreLevel)
	semaphoreSetCapacity = changes(opSetCapacity, "SetCapacity", "set_capacity", "set", "refused", (*Server).setCapacity).since(owner.SemaphoreLevel)
	semaphoreInspect     = reads(opInspectSemaphore, "Inspect", "inspect_semaphore", "held", "free", (*Server).inspectSemaphore).since(owner.SemaphoreLevel)
	semaphoreAwait       = awaits(opAwaitPermits, "await_permits", "changed", "same", (*Server).awaitPermits).since(owner.WatchLevel)
	onceBegin            = waits(opBeginOnce, "Begin", "begin_once", "first", "not_first", (*Server).beginOnce, unbegin, addTurnWaited).since(owner.OnceLevel)
	onceRenew            = changes(opRenewOnce, "Renew", "renew_once", "renewed", "gone", (*Server).renewOnce).since(owner.OnceLevel)
	onceComplete         = changes(opCompleteOnce, "Complete", "complete_once", "completed", "gone", (*Server).completeOnce).since(owner.OnceLevel)
	onceAbandon          = changes(opAbandonOnce, "Abandon", "abandon_once", "abandoned", "gone", (*Server).abandonOnce).since(owner.OnceLevel)
	onceGet              = reads(opGetOnce, "Get", "get_once", "answered", "absent", (*Server).getOnce).since(owner.OnceLevel)
	onceForget           = changes(opForgetOnce, "Forget", "forget_once", "forgotten", "kept", (*Server).forgetOnce).since(owner.OnceLevel)
	electionCampaign     = waits(opCampaign, "Campaign", "campaign", "elected", "refused", (*Server).campaign, unelect, addLineWaited).since(owner.ElectionLevel)
	electionRenew        = changes(opRenewLeader, "Renew", "renew_leader", "renewed", "gone", (*Server).renewLeader).since(owner.ElectionLevel)
	electionProclaim     = changes(opProclaim, "Proclaim", "proclaim", "proclaimed", "gone", (*Server).proclaim).since(owner.ElectionLevel)
	electionResign       = changes(opResign, "Resign", "resign", "resigned", "gone", (*Server).resign).since(owner.ElectionLevel)
	electionVerify       = reads(opVerifyLeader, "Verify", "verify_leader", "leads", "gone", (*Server).verifyLeader).since(owner.ElectionLevel)
	electionRevoke       = changes(opRevokeLeader, "Revoke", "revoke_leader", "revoked", "gone", (*Server).revokeLeader).since(owner.ElectionLevel)
	electionInspect      = reads(opInspectElection, "Inspect", "inspect_election", "led", "free", (*Server).inspectElection).since(owner.ElectionLevel)
	electionAwait        = awaits(opAwaitElection, "await_election", "changed", "same", (*Server).awaitElection).since(owner.ElectionLevel)
	groupJoin            = changes(opJoin, "Join", "join", "joined", "refused", (*Server).join).since(owner.GroupLevel)
	groupRenew           = changes(opRenewMember, "Renew", "renew_member", "renewed", "gone", (*Server).renewMember).since(owner.GroupLevel)
	groupUpdate          = changes(opUpdateMember, "Update", "update_member", "updated", "gone", (*Server).updateMember).since(owner.GroupLevel)
	groupLeave           = changes(opLeaveGroup, "Leave", "leave_group", "left", "gone", (*Server).leaveGroup).since(owner.GroupLevel)
	groupVerify          = reads(opVerifyMember, "Verify", "verify_member", "member", "gone", (*Server).verifyMember).since(owner.GroupLevel)
	groupList            = reads(opListGroup, "List", "list_group", "answered", "empty", (*Server).listGroup).since(owner.GroupLevel)
	groupAwait           = awaits(opAwaitGroup, "await_group", "changed", "same", (*Server).awaitGroup).since(owner.GroupLevel)
	barrierArrive        = changes(opArrive, "Arrive", "arrive", "arrived", "refused", (*Server).arrive).since(owner.BarrierLevel)
	barrierAwait         = patiently(awaits(opAwaitPhase, "await_phase", "ended", "under_way", (*Server).awaitPhase), "Await").since(owner.BarrierLevel)
	barrierRegister      = changes(opRegisterParty, "Register", "register_party", "registered", "refused", (*Server).registerParty).since(owner.BarrierLevel)
	barrierRenew         = changes(opRenewParty, "Renew", "renew_party", "renewed", "gone", (*Server).renewParty).since(owner.BarrierLevel)
	barrierLeave         = changes(opLeaveBarrier, "Leave", "leave_barrier", "left", "gone", (*Server).leaveBarrier).since(owner.BarrierLevel)
	barrierBreak         = changes(opBreakBarrier, "Break", "break_barrier", "broken", "absent", (*Server).breakBarrier).since(owner.BarrierLevel)
	barrierInspect       = reads(opInspectBarrier, "Inspect", "inspect_barrier", "answered", "absent", (*Server).inspectBarrier).since(owner.BarrierLevel)
	admissionAdmit       = changes(opAdmit, "Admit", "admit", "admitted", "refused", (*Server).admit).since(owner.AdmissionLevel).peeking(admissionPeek, (*admissionpb.AdmitRequest).GetPeek).fronted((*Server).frontAdmit)
	admissionAnywhere    = mayWait(changes(opAdmitAnywhere, "", "admit_anywhere", "admitted", "refused", (*Server).admitPaid).since(owner.AdmissionLevel))
	admissionPeek        = counted(opPeekAdmission, "peek_admission", "admitted", "refused")
	admissionSettle      = changes(opSettle, "Settle", "settle", "settled", "unknown", (*Server).settle).since(owner.AdmissionLevel)
	admissionExtend      = changes(opExtend, "Extend", "extend", "extended", "gone", (*Server).extend).since(owner.AdmissionLevel).fronted((*Server).frontExtend)
	admissionInspect     = reads(opInspectAdmission, "Inspect", "inspect_admission", "held", "free", (*Server).inspectAdmission).since(owner.AdmissionLevel)
	acrossHold           = changes(opHoldAcross, "", "hold_across", "held", "refused", (*Server).holdAcross).since(owner.AdmissionLevel)
	counterAwait         = patiently(awaits(opAwaitCounter, "await_counter", "met", "unmet", (*Server).awaitCounter), "Await").since(owner.BarrierLevel).fronted((*Server).frontAwait)
	idNext               = counted(opNext, "next", "given", "none")

	partPlant   = ofPart(opPlant, "plant", func(*peerv1.PlantRequest) table.SplitPhase { return table.Opening }, (*Server).plant)
	keyInspect  = ofKey(opInspectKey, "inspect_key", (*Server).inspectKey)
	objectsList = ofNode(opListObjects, "list_objects", (*Server).listObjects)

	acrossWord     = ofNews(opWordAcross, "word_across", (*Server).wordAcross)
	acrossQuestion = ofNews(opQuestionAcross, "question_across", (*Server).questionAcross)

	sessionKeepAlive = ofSession(opKeepAlive, "keep_alive", "kept", "differs", (*Server).keepAlive)
	sessionEnd       = ofSession(opEndSession, "end_session", "ended", "nothing", (*Server).endSession)

	partRead = ofPart(opReadPart, "read_part", phaseOfRead, (*Server).readPart)
)

// catalog is all of them: the kinds of objects with their operations, and what is of no
// kind. A kind that is added here is served, counted, forwarded, and known to settings.
var catalog = []*kind{
	newKind(kind{of: owner.KindLimit, name: limitKind, setting: "limits", parts: true, service: &limitpb.LimitService_ServiceDesc}, limitCheck.operation, limitPeek, limitSpend, limitReset.operation, limitSetOverride.operation, limitClearOverride.operation, limitGetOverride.operation),
	newKind(kind{of: owner.KindCounter, name: counterKind, setting: "counters", parts: true, service: &counterpb.CounterService_ServiceDesc}, counterAdd.operation, counterCompareAndSet.operation, counterGet.operation, counterReset.operation, counterDelete.operation, counterAwait.operation),
	newKind(kind{of: owner.KindLock, name: lockKind, setting: "locks", service: &lockpb.LockService_ServiceDesc}, lockAcquire.operation, lockRenew.operation, lockRelease.operation, lockInspect.operation, lockVerify.operation, lockUpdate.operation, lockDowngrade.operation, lockRevoke.operation, lockAwait.operation),
	newKind(kind{of: owner.KindRegister, name: "register", setting: "registers", service: &registerpb.RegisterService_ServiceDesc}, registerGet.operation, registerPut.operation, registerCAS.operation, registerDelete.operation, registerAwait.operation),
	newKind(kind{of: owner.KindSemaphore, name: "semaphore", setting: "semaphores", service: &semaphorepb.SemaphoreService_ServiceDesc}, semaphoreAcquire.operation, semaphoreRenew.operation, semaphoreRelease.operation, semaphoreVerify.operation, semaphoreUpdate.operation, semaphoreDowngrade.operation, semaphoreRevoke.operation, semaphoreSetCapacity.operation, semaphoreInspect.operation, semaphoreAwait.operation),
	newKind(kind{of: owner.KindOnce, name: "once", setting: "once", service: &oncepb.OnceService_ServiceDesc}, onceBegin.operation, onceRenew.operation, onceComplete.operation, onceAbandon.operation, onceGet.operation, onceForget.operation),
	newKind(kind{of: owner.KindElection, name: "election", setting: "elections", service: &electionpb.ElectionService_ServiceDesc}, electionCampaign.operation, electionRenew.operation, electionProclaim.operation, electionResign.operation, electionVerify.operation, electionRevoke.operation, electionInspect.operation, electionAwait.operation),
	newKind(kind{of: owner.KindBarrier, name: "barrier", setting: "barriers", service: &barrierpb.BarrierService_ServiceDesc}, barrierArrive.operation, barrierAwait.operation, barrierRegister.operation, barrierRenew.operation, barrierLeave.operation, barrierBreak.operation, barrierInspect.operation),
	newKind(kind{of: owner.KindGroup, name: "group", setting: "groups", service: &grouppb.GroupService_ServiceDesc}, groupJoin.operation, groupRenew.operation, groupUpdate.operation, groupLeave.operation, groupVerify.operation, groupList.operation, groupAwait.operation),
	newKind(kind{of: owner.KindAdmission, name: "admission", setting: "admissions", service: &admissionpb.AdmissionService_ServiceDesc}, admissionAdmit.operation, admissionPeek, admissionAnywhere.operation, admissionSettle.operation, admissionExtend.operation, admissionInspect.operation),
	newKind(kind{}, idNext, partPlant, partRead, keyInspect, objectsList, sessionKeepAlive, sessionEnd, acrossHold.operation, acrossWord, acrossQuestion),
}

// kind is a kind of object, as the API knows it.
type kind struct {
	of      owner.Kind
	name    string // of objects that a request does not name, and of the kind where splits name it
	setting string // what settings call its objects; "" = they do not
	parts   bool   // its objects may be split
	service *grpc.ServiceDesc
	ops     []*operation
}

func newKind(k kind, ops ...*operation) *kind {
	k.ops = ops
	for _, o := range ops {
		o.of = &k
	}
	return &k
}

// named returns the name of an object that a request gives this name.
func (k *kind) named(name string) string {
	if name == "" {
		return k.name
	}
	return name
}

// wireKind returns what a kind is in the API, by its name; unspecified if it is none.
func wireKind(name string) commonpb.Kind {
	return commonpb.Kind(commonpb.Kind_value["KIND_"+strings.ToUpper(name)])
}

// kindName returns the name of a kind; "" for one that is none.
func kindName(k commonpb.Kind) string {
	name, ok := strings.CutPrefix(k.String(), "KIND_")
	if !ok || k == commonpb.Kind_KIND_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(name)
}

// Kinds are the kinds of objects, as settings name them.
var Kinds = settings()

func settings() (names []string) {
	for _, k := range catalog {
		if k.setting != "" {
			names = append(names, k.setting)
		}
	}
	return names
}

// sentOperations returns the operations that nodes send each other, by number.
func sentOperations() (sent [maxOperation + 1]*operation) {
	for _, k := range catalog {
		for _, o := range k.ops {
			if o.decide != nil {
				sent[o.Number] = o
			}
		}
	}
	return sent
}

// register serves a service: the operations of the kind by the table, the rest (batches
// and streams) by impl.
func (s *Server) register(k *kind, impl any) {
	sd := *k.service
	sd.Methods = slices.Clone(sd.Methods)
	for i, m := range sd.Methods {
		for _, o := range k.ops {
			if o.handler != nil && o.method == m.MethodName {
				sd.Methods[i] = o.handler(s, sd.ServiceName)
			}
		}
	}
	s.offer(&sd, impl)
}
