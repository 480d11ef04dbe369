package forward

import peerv1 "github.com/keystead/keystead/proto/keystead/peer/v1"

// The operations that have a field of their own in the envelope of level 3 and below, by
// the number of that field in ForwardCall. This list is closed: what comes later travels
// by its number.
const (
	numCheck         = 4
	numAdd           = 5
	numGet           = 6
	numCompareAndSet = 7
	numReset         = 8
	numAcquire       = 9
	numRenew         = 10
	numRelease       = 11
	numInspect       = 12
	numPlant         = 14
	numReadPart      = 15
)

// setField puts a request into the field of its operation. It reports false if there is
// none.
func setField(f *peerv1.ForwardCall, number uint32, b []byte) bool {
	switch number {
	case numCheck:
		f.Call = &peerv1.ForwardCall_Check{Check: b}
	case numAdd:
		f.Call = &peerv1.ForwardCall_Add{Add: b}
	case numGet:
		f.Call = &peerv1.ForwardCall_Get{Get: b}
	case numCompareAndSet:
		f.Call = &peerv1.ForwardCall_CompareAndSet{CompareAndSet: b}
	case numReset:
		f.Call = &peerv1.ForwardCall_Reset_{Reset_: b}
	case numAcquire:
		f.Call = &peerv1.ForwardCall_Acquire{Acquire: b}
	case numRenew:
		f.Call = &peerv1.ForwardCall_Renew{Renew: b}
	case numRelease:
		f.Call = &peerv1.ForwardCall_Release{Release: b}
	case numInspect:
		f.Call = &peerv1.ForwardCall_Inspect{Inspect: b}
	case numPlant:
		f.Call = &peerv1.ForwardCall_Plant{Plant: b}
	case numReadPart:
		f.Call = &peerv1.ForwardCall_ReadPart{ReadPart: b}
	default:
		return false
	}
	return true
}

// field returns the operation whose field a call uses, and its request; 0 if it is none that
// this program knows.
func field(f *peerv1.ForwardCall) (number uint32, b []byte) {
	switch x := f.Call.(type) {
	case *peerv1.ForwardCall_Check:
		return numCheck, x.Check
	case *peerv1.ForwardCall_Add:
		return numAdd, x.Add
	case *peerv1.ForwardCall_Get:
		return numGet, x.Get
	case *peerv1.ForwardCall_CompareAndSet:
		return numCompareAndSet, x.CompareAndSet
	case *peerv1.ForwardCall_Reset_:
		return numReset, x.Reset_
	case *peerv1.ForwardCall_Acquire:
		return numAcquire, x.Acquire
	case *peerv1.ForwardCall_Renew:
		return numRenew, x.Renew
	case *peerv1.ForwardCall_Release:
		return numRelease, x.Release
	case *peerv1.ForwardCall_Inspect:
		return numInspect, x.Inspect
	case *peerv1.ForwardCall_Plant:
		return numPlant, x.Plant
	case *peerv1.ForwardCall_ReadPart:
		return numReadPart, x.ReadPart
	}
	return 0, nil
}

// setAnswerField puts a response into the field of its operation.
func setAnswerField(f *peerv1.ForwardAnswer, number uint32, b []byte) {
	switch number {
	case numCheck:
		f.Answer = &peerv1.ForwardAnswer_Check{Check: b}
	case numAdd:
		f.Answer = &peerv1.ForwardAnswer_Add{Add: b}
	case numGet:
		f.Answer = &peerv1.ForwardAnswer_Get{Get: b}
	case numCompareAndSet:
		f.Answer = &peerv1.ForwardAnswer_CompareAndSet{CompareAndSet: b}
	case numReset:
		f.Answer = &peerv1.ForwardAnswer_Reset_{Reset_: b}
	case numAcquire:
		f.Answer = &peerv1.ForwardAnswer_Acquire{Acquire: b}
	case numRenew:
		f.Answer = &peerv1.ForwardAnswer_Renew{Renew: b}
	case numRelease:
		f.Answer = &peerv1.ForwardAnswer_Release{Release: b}
	case numInspect:
		f.Answer = &peerv1.ForwardAnswer_Inspect{Inspect: b}
	case numPlant:
		f.Answer = &peerv1.ForwardAnswer_Plant{Plant: b}
	case numReadPart:
		f.Answer = &peerv1.ForwardAnswer_ReadPart{ReadPart: b}
	}
}

// answerField returns the operation whose field an answer uses, and its response.
func answerField(f *peerv1.ForwardAnswer) (number uint32, b []byte) {
	switch x := f.Answer.(type) {
	case *peerv1.ForwardAnswer_Check:
		return numCheck, x.Check
	case *peerv1.ForwardAnswer_Add:
		return numAdd, x.Add
	case *peerv1.ForwardAnswer_Get:
		return numGet, x.Get
	case *peerv1.ForwardAnswer_CompareAndSet:
		return numCompareAndSet, x.CompareAndSet
	case *peerv1.ForwardAnswer_Reset_:
		return numReset, x.Reset_
	case *peerv1.ForwardAnswer_Acquire:
		return numAcquire, x.Acquire
	case *peerv1.ForwardAnswer_Renew:
		return numRenew, x.Renew
	case *peerv1.ForwardAnswer_Release:
		return numRelease, x.Release
	case *peerv1.ForwardAnswer_Inspect:
		return numInspect, x.Inspect
	case *peerv1.ForwardAnswer_Plant:
		return numPlant, x.Plant
	case *peerv1.ForwardAnswer_ReadPart:
		return numReadPart, x.ReadPart
	}
	return 0, nil
}
