package owner

import (
	"github.com/cespare/xxhash/v2"

	"github.com/keystead/keystead/owner/admission"
	"github.com/keystead/keystead/owner/counter"
	"github.com/keystead/keystead/owner/hold"
	"github.com/keystead/keystead/owner/limit"
	"github.com/keystead/keystead/owner/lock"
	"github.com/keystead/keystead/owner/once"
	"github.com/keystead/keystead/owner/reqid"
	"github.com/keystead/keystead/owner/value"
)

// Operations, for fingerprints. A number stands for one operation for ever: other
// processes remember it.
const (
	opCheck uint64 = iota + 1
	opAdd
	opCompareAndSet
	opReset
	opAcquire
	opRelease
	opRefund
	opDelete
	opResetLimit
	opSetRegister
	opDeleteRegister
	opAcquirePermits
	opReleasePermits
	opRevokePermits
	opSetCapacity
	opRevokeLock
	opShareLock
	opArrive
	opRegisterParty
	opLeaveBarrier
	opBreakBarrier
	opUpdatePermits
	opUpdateLock
)

// … each kind that was added later has numbers of its own.
const (
	opBeginOnce uint64 = iota + 40
	opCompleteOnce
	opAbandonOnce
	opForgetOnce
)

const (
	opCampaign uint64 = iota + 50
	opResign
	opRevokeLeader
	opProclaim
)

const (
	opJoin uint64 = iota + 60
	opLeave
	opUpdateMember
)

const (
	opSetOverride uint64 = iota + 90
	opClearOverride
)

const (
	opAdmit uint64 = iota + 70
	opSettle
)

const opOverdraft uint64 = 80

// fingerprint tells operations under one request id apart: what they do and
// by how much.
func fingerprint(op, arg uint64) uint32 {
	h := (arg ^ op<<56) * 0x9E3779B97F4A7C15
	return uint32(h>>32) ^ uint32(h)
}

// digest is the fingerprint of an operation under an idempotency key: of all that it asks
// for, as it was decided, defaults included. So it does not depend on how the request was
// written. What a caller may change from one attempt to the next is not in it: how long it
// waits.
type digest uint64

func digestOf(op uint64) digest { return digest(0).with(op) }

// with adds a field. Each operation adds the same number of them, in one order.
func (d digest) with(v uint64) digest {
	h := (uint64(d) ^ v) * 0x9E3779B97F4A7C15
	h = (h ^ h>>32) * 0xC2B2AE3D27D4EB4F
	return digest(h ^ h>>29)
}

func (d digest) flag(b bool) digest {
	if b {
		return d.with(1)
	}
	return d.with(0)
}

func (d digest) print() uint32 { return uint32(d>>32) ^ uint32(d) }

// printOfCheck goes by what was asked for: where that is a policy, not by what it is now.
func printOfCheck(id *reqid.ID, op *limit.Op, policy string) uint32 {
	what, n := opCheck, op.Cost
	switch {
	case op.Refund != 0:
		what, n = opRefund, op.Refund
	//guard:overdraft-print
	case op.Overdraft:
		what = opOverdraft
	}
	if policy != "" {
		if !id.Given() {
			return 0
		}
		return digestOf(what).with(n).with(xxhash.Sum64String(policy)).print()
	}
	//guard:key-fields-check
	if id.Keyed() {
		return digestOf(what).with(n).params(&op.Params).print()
	}
	return fingerprint(what, n)
}

// params adds those of a limit.
func (d digest) params(p *limit.Params) digest {
	period := uint64(p.Period)
	if p.Algorithm == limit.CalendarWindow { // its number is another one in another program
		period = xxhash.Sum64String(limit.Calendar(p.Period).String())
	}
	return d.with(uint64(p.Algorithm)).with(p.Limit).with(period).with(p.Capacity())
}

func printOfAdd(id *reqid.ID, op *counter.AddOp) uint32 {
	//guard:key-fields-add
	if id.Keyed() {
		return digestOf(opAdd).with(uint64(op.Delta)).flag(op.HasMin).with(uint64(op.Min)).flag(op.HasMax).with(uint64(op.Max)).with(uint64(op.IdleTTL)).print()
	}
	return fingerprint(opAdd, uint64(op.Delta))
}

func printOfCompareAndSet(id *reqid.ID, op *counter.CompareAndSetOp) uint32 {
	//guard:key-fields-set
	if id.Keyed() {
		return digestOf(opCompareAndSet).with(uint64(op.Value)).with(op.Version).with(uint64(op.IdleTTL)).print()
	}
	return fingerprint(opCompareAndSet, uint64(op.Value)^op.Version<<32)
}

func printOfAcquire(id *reqid.ID, op *hold.Acquire) uint32 {
	what := opAcquire
	if op.Weight != lock.All {
		what = opShareLock
	}
	//guard:key-fields-acquire
	if id.Keyed() {
		d := digestOf(what).with(xxhash.Sum64String(op.Name)).with(uint64(op.TTL)).with(xxhash.Sum64(op.Metadata))
		if op.Delay != 0 { // members that know none have the same print without
			d = d.with(uint64(op.Delay))
		}
		return d.print()
	}
	return fingerprint(what, xxhash.Sum64String(op.Name))
}

// printOfAcquire returns the fingerprint of an acquire of a kind that is held.
func (f *family) printOfAcquire(id *reqid.ID, op *hold.Acquire) uint32 {
	switch {
	case !id.Given():
		return 0 // nobody comes back to it
	case f.acquire == opAcquire:
		return printOfAcquire(id, op)
	}
	d := digestOf(f.acquire).with(xxhash.Sum64String(op.Name)).with(uint64(op.Weight))
	if id.Keyed() {
		d = d.with(uint64(op.Capacity)).with(uint64(op.TTL)).with(uint64(op.Delay)).with(xxhash.Sum64(op.Metadata))
	}
	if op.Unique {
		d = d.with(op.After)
	}
	return d.print()
}

func (f *family) printOfUpdate(id *reqid.ID, token uint64, metadata []byte) uint32 {
	if !id.Given() {
		return 0
	}
	return digestOf(f.update).with(token).with(xxhash.Sum64(metadata)).print()
}

func printOfSetRegister(id *reqid.ID, op *SetRegister) uint32 {
	sum := xxhash.Sum64(op.Value)
	//guard:key-fields-set-register
	if id.Keyed() {
		return digestOf(opSetRegister).with(sum).conditions(&op.Conditions, op.Hold).print()
	}
	return fingerprint(opSetRegister, sum^op.Version<<32)
}

func printOfDeleteRegister(id *reqid.ID, op *DeleteRegister) uint32 {
	//guard:key-fields-delete-register
	if id.Keyed() {
		return digestOf(opDeleteRegister).flag(op.Forget).conditions(&op.Conditions, op.Hold).print()
	}
	return fingerprint(opDeleteRegister, op.Version)
}

// conditions adds those of a change of a register.
func (d digest) conditions(c *value.Conditions, h Hold) digest {
	return d.flag(c.Versioned).with(c.Version).with(c.Fence).with(xxhash.Sum64String(h.Name)).with(h.Token)
}

func printOfBegin(id *reqid.ID, op *once.Begin) uint32 {
	sum := xxhash.Sum64(op.Print)
	//guard:key-fields-begin
	if id.Keyed() {
		return digestOf(opBeginOnce).with(sum).with(xxhash.Sum64(op.Holder)).with(uint64(op.TTL)).print()
	}
	return fingerprint(opBeginOnce, sum)
}

func printOfComplete(id *reqid.ID, token uint64, result []byte, keep int64) uint32 {
	sum := xxhash.Sum64(result)
	//guard:key-fields-complete
	if id.Keyed() {
		return digestOf(opCompleteOnce).with(token).with(sum).with(uint64(keep)).print()
	}
	return fingerprint(opCompleteOnce, token^sum)
}

func printOfAdmit(id *reqid.ID, op *Admit) uint32 {
	if !id.Given() {
		return 0
	}
	if op.Asked != 0 {
		return digestOf(opAdmit).with(op.Asked).with(uint64(op.Hold)).flag(op.Charge).print()
	}
	d := digestOf(opAdmit).with(uint64(len(op.Demands))).with(uint64(op.Hold)).flag(op.Charge)
	for i := range op.Demands {
		x := &op.Demands[i]
		d = d.with(xxhash.Sum64String(x.Name)).with(uint64(x.Of)<<32 | uint64(x.Clamp)).with(x.Cost)
		d = d.params(&x.Params).with(uint64(x.Max))
	}
	return d.print()
}

func printOfSettle(id *reqid.ID, hold admission.ID, costs []Cost, release bool) uint32 {
	if !id.Given() {
		return 0
	}
	d := digestOf(opSettle).with(hold.Client.Hi).with(hold.Client.Lo).with(hold.Sequence).flag(release).with(uint64(len(costs)))
	for i := range costs {
		d = d.with(xxhash.Sum64String(costs[i].Name)).with(costs[i].Cost)
	}
	return d.print()
}
