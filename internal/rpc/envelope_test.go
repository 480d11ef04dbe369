package rpc

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/keystead/keystead/internal/forward"
	adminpb "github.com/keystead/keystead/proto/keystead/admin/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	lockpb "github.com/keystead/keystead/proto/keystead/lock/v1"
	peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"
	registerpb "github.com/keystead/keystead/proto/keystead/register/v1"
)

// envelopedCall is a call with its answer as they go over the wire.
type envelopedCall struct {
	op      *operation
	request forward.Message
	three   string
	four    string
	answer  forward.Message
	answer3 string
	answer4 string
	onPart  bool
}

// enveloped are calls as they go over the wire: in the envelope of level 3, as a program
// of that level has written them, and in that of level 4.
func enveloped() []envelopedCall {
	id := &commonpb.RequestId{Client: []byte("0123456789abcdef"), Sequence: 7, Settled: 5, AgeNs: 9}
	return []envelopedCall{
		{limitCheck.operation, &limitpb.CheckRequest{Key: "k", Name: "n", Limit: 5, PeriodNs: 1e9, RequestId: id},
			"0801100218036a040803100122280a016b12016e1805208094ebdc034a180a1030313233343536373839616263646566100718052009",
			"0801100218036a04080310018001048a01280a016b12016e1805208094ebdc034a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&limitpb.CheckResponse{Allowed: true, Capacity: 5}, "08011a0408011005", "080170047a0408011005", true},
		{counterAdd.operation, &counterpb.AddRequest{Key: "k", Delta: -2, RequestId: id},
			"0801100218032a1f0a016b18033a180a1030313233343536373839616263646566100718052009",
			"0801100218038001058a011f0a016b18033a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&counterpb.AddResponse{Applied: true, Value: -2}, "0801220408011003", "080170057a0408011003", false},
		{counterGet.operation, &counterpb.GetRequest{Key: "k"},
			"0801100218036a040803100132030a016b",
			"0801100218036a04080310018001068a01030a016b9201016b",
			&counterpb.GetResponse{Value: 3}, "08012a020806", "080170067a020806", true},
		{counterCompareAndSet.operation, &counterpb.CompareAndSetRequest{Key: "k", Value: 3, RequestId: id},
			"0801100218033a1f0a016b180632180a1030313233343536373839616263646566100718052009",
			"0801100218038001078a011f0a016b180632180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&counterpb.CompareAndSetResponse{Applied: true}, "080132020801", "080170077a020801", false},
		{counterReset.operation, &counterpb.ResetRequest{Key: "k", RequestId: id},
			"080110021803421d0a016b1a180a1030313233343536373839616263646566100718052009",
			"0801100218038001088a011d0a016b1a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&counterpb.ResetResponse{Previous: 4}, "08013a020808", "080170087a020808", false},
		{lockAcquire.operation, &lockpb.AcquireRequest{Key: "k", Holder: "h", TtlNs: 1e9, WaitNs: 2e9, RequestId: id},
			"0801100218034a2c0a016b1a0168208094ebdc032880a8d6b9073a180a1030313233343536373839616263646566100718052009",
			"0801100218038001098a012c0a016b1a0168208094ebdc032880a8d6b9073a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009a00180a8d6b907",
			&lockpb.AcquireResponse{Acquired: true, Token: 8}, "0801420408011008", "080170097a0408011008", false},
		{lockRenew.operation, &lockpb.RenewRequest{Key: "k", Token: 8, TtlNs: 1e9},
			"080110021803520b0a016b1808208094ebdc03",
			"08011002180380010a8a010b0a016b1808208094ebdc039201016b",
			&lockpb.RenewResponse{Renewed: true}, "08014a020801", "0801700a7a020801", false},
		{lockRelease.operation, &lockpb.ReleaseRequest{Key: "k", Token: 8, RequestId: id},
			"0801100218035a1f0a016b180822180a1030313233343536373839616263646566100718052009",
			"08011002180380010b8a011f0a016b180822180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&lockpb.ReleaseResponse{Released: true}, "080152020801", "0801700b7a020801", false},
		{lockInspect.operation, &lockpb.InspectRequest{},
			"0801100218036200",
			"08011002180380010c",
			&lockpb.InspectResponse{Waiting: 2}, "08015a021802", "0801700c7a021802", false},
		{partPlant, &peerv1.PlantRequest{Home: "n1", HomeIncarnation: 2},
			"0801100218036a0408031001720612026e311802",
			"0801100218036a040803100180010e8a010612026e311802",
			&peerv1.PlantResponse{}, "08016200", "0801700e", true},
		{partRead, &peerv1.ReadPartRequest{All: true},
			"0801100218036a04080310017a020801",
			"0801100218036a040803100180010f8a01020801",
			&peerv1.ReadPartResponse{Value: 6}, "08016a02100c", "0801700f7a02100c", true},
		// Those of level 5 have no field of their own.
		{counterDelete.operation, &counterpb.DeleteRequest{Key: "k", RequestId: id}, "",
			"0801100218038001108a011d0a016b1a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&counterpb.DeleteResponse{Deleted: true, Previous: 6, Version: 9}, "", "080170107a060801100c1809", false},
		{limitReset.operation, &limitpb.ResetRequest{Key: "k", RequestId: id}, "",
			"0801100218038001118a011d0a016b1a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&limitpb.ResetResponse{Existed: true, Spent: 6}, "", "080170117a0408013006", false},
		{registerGet.operation, &registerpb.GetRequest{Key: "k"}, "",
			"0801100218038001188a01030a016b9201016b",
			&registerpb.GetResponse{Exists: true, Value: []byte("v"), Version: 6}, "", "080170187a0708011201761806", false},
		{registerPut.operation, &registerpb.PutRequest{Key: "k", Value: []byte("v"), Fence: 6, Hold: &registerpb.Hold{Token: 7}, RequestId: id}, "",
			"0801100218038001198a01260a016b1a017620062a02100732180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&registerpb.PutResponse{Applied: true, Version: 6}, "", "080170197a0408011806", false},
		{registerCAS.operation, &registerpb.CompareAndSetRequest{Key: "k", Value: []byte("v"), Version: 6, RequestId: id}, "",
			"08011002180380011a8a01220a016b1a017620063a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&registerpb.CompareAndSetResponse{Refusal: registerpb.Refusal_REFUSAL_OTHER_VERSION, Version: 7, Current: &registerpb.Register{Exists: true}}, "", "0801701a7a081001180722020801", false},
		{registerDelete.operation, &registerpb.DeleteRequest{Key: "k", ForgetFence: true, RequestId: id}, "",
			"08011002180380011b8a011f0a016b30013a180a10303132333435363738396162636465661007180520099201016b9a01180a1030313233343536373839616263646566100718052009",
			&registerpb.DeleteResponse{Deleted: true, Version: 6}, "", "0801701b7a0408011806", false},
		{registerAwait.operation, &peerv1.AwaitRequest{Key: "k", Seen: &peerv1.Seen{Position: 6, Exists: true}, WaitNs: 2e9}, "",
			"08011002180380011c8a010f0a016b1a04080610012080a8d6b9079201016ba00180a8d6b907",
			&peerv1.AwaitRegisterResponse{Exists: true, Value: []byte("v"), Position: 7}, "", "0801701c7a0708011201761807", false},
		{keyInspect, &adminpb.InspectKeyRequest{Key: "k"}, "",
			"0801100218038001128a01030a016b9201016b",
			&adminpb.InspectKeyResponse{Epoch: 6}, "", "080170127a021006", false},
		{objectsList, &adminpb.ListObjectsRequest{Node: "n1", PageSize: 6}, "",
			"0801100218038001138a01060a026e312806",
			&adminpb.ListObjectsResponse{Node: "n1"}, "", "080170137a040a026e31", false},
	}
}

// TestEnvelopes: what is written is what was written before, byte by byte, and is read
// again as what it was.
func TestEnvelopes(t *testing.T) {
	known := (&Server{sent: sentOperations()}).known
	covered := map[uint32]bool{}
	for _, tc := range slices.Concat(enveloped(), envelopedPermits(), envelopedLocks(), envelopedOverrides(), envelopedOnces(), envelopedSessions(), envelopedElections(), envelopedBarriers(), envelopedGroups(), envelopedAdmissions(), envelopedAcross(), envelopedWatches()) {
		covered[tc.op.Number] = true
		c := tc.op.Call(tc.request)
		c.Since, c.Deadline = 2, 3
		if tc.onPart {
			c.Part = &peerv1.Part{Split: 3, Index: 1}
		}
		for level, golden := range map[int][2]string{3: {tc.three, tc.answer3}, 4: {tc.four, tc.answer4}} {
			f, err := forward.Encode(&c, level == 4)
			if golden[0] == "" && err != nil {
				continue // it is not of that level
			}
			if err != nil {
				t.Fatal(err)
			}
			f.Tag = 1
			sent := must(f.MarshalVT())(t)
			if hex.EncodeToString(sent) != golden[0] {
				t.Errorf("%s, level %d: written as\n%x, not\n%s", tc.op.Name, level, sent, golden[0])
			}
			read := &peerv1.ForwardCall{}
			if err := read.UnmarshalVT(sent); err != nil {
				t.Fatal(err)
			}
			got, err := forward.Decode(read, known)
			if err != nil {
				t.Fatal(err)
			}
			if got.Op != &tc.op.Operation || !proto.Equal(got.Request, tc.request) || !proto.Equal(got.ID, c.ID) || got.Wait != c.Wait ||
				got.Tag != 1 || got.Since != 2 || got.Deadline != 3 || !proto.Equal(got.Part, c.Part) || got.Key != c.Key || got.Enveloped != (level == 4) {
				t.Errorf("%s, level %d: read as %+v, not %+v", tc.op.Name, level, got, c)
			}
			answer := must(must(forward.EncodeAnswer(got, tc.answer))(t).MarshalVT())(t)
			if hex.EncodeToString(answer) != golden[1] {
				t.Errorf("%s, level %d: answered as\n%x, not\n%s", tc.op.Name, level, answer, golden[1])
			}
			back := &peerv1.ForwardAnswer{}
			if err := back.UnmarshalVT(answer); err != nil {
				t.Fatal(err)
			}
			if m, err := forward.DecodeAnswer(back, &tc.op.Operation); err != nil || !proto.Equal(m, tc.answer) {
				t.Errorf("%s, level %d: the answer is read as %v, %v", tc.op.Name, level, m, err)
			}
			if m, err := forward.DecodeAnswer(back, &forward.Operation{Number: 13, Name: "another"}); err == nil {
				t.Errorf("%s, level %d: the answer to another operation is read as %v", tc.op.Name, level, m)
			}
		}
	}
	for number, o := range sentOperations() {
		if o != nil && !covered[uint32(number)] {
			t.Errorf("nothing is known of how %s travels", o.Name)
		}
	}
}

// An answer with neither a response nor an error is not one of zeros: in no envelope.
func TestAnswersOfNothing(t *testing.T) {
	for _, o := range sentOperations() {
		if o == nil || o.Bare { // operations between nodes on parts, of which one has an answer without fields
			continue
		}
		for what, f := range map[string]*peerv1.ForwardAnswer{"bare": {Tag: 1}, "enveloped": {Tag: 1, Operation: o.Number}, "empty": {Tag: 1, Operation: o.Number, Response: []byte{}}} {
			if m, err := forward.DecodeAnswer(f, &o.Operation); err == nil {
				t.Errorf("%s, %s: read as %v", o.Name, what, m)
			}
		}
	}
}

// TestEnvelopesAge: a call that is sent later has an older id, and less time to wait, in
// both envelopes; what its caller sent stays as it was.
func TestEnvelopesAge(t *testing.T) {
	known := (&Server{sent: sentOperations()}).known
	req := &lockpb.AcquireRequest{Key: "k", Holder: "h", TtlNs: 1e9, WaitNs: 100, RequestId: requestN(1, 1)}
	before := must(req.MarshalVT())(t)
	c := lockAcquire.Call(req)
	c.Wait, c.ID = 60, &commonpb.RequestId{Client: req.RequestId.Client, Sequence: req.RequestId.Sequence, AgeNs: 40}
	for _, level4 := range []bool{false, true} {
		f := must(forward.Encode(&c, level4))(t)
		got := must(forward.Decode(f, known))(t)
		if got.Wait != 60 || got.ID.AgeNs != 40 || got.ID.Sequence != 1 {
			t.Errorf("level 4: %v: it waits %d, with the id %v", level4, got.Wait, got.ID)
		}
		if after := must(req.MarshalVT())(t); !bytes.Equal(before, after) {
			t.Errorf("level 4: %v: the request has become %v", level4, req)
		}
	}
	// What has no field of its own does not travel before level 4.
	later := forward.Call{Op: &forward.Operation{Number: 20, Name: "later", Call: lockAcquire.Call}, Request: req}
	if f, err := forward.Encode(&later, false); err == nil {
		t.Errorf("it travels as %v", f)
	}
	if f, err := forward.Encode(&later, true); err != nil || f.Operation != 20 {
		t.Errorf("from level 4 on: %v, %v", f, err)
	}
}
