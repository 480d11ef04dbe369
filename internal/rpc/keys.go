package rpc

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/owner"
	"github.com/keystead/keystead/owner/reqid"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
)

// keyed is a request that may carry an idempotency key.
type keyed interface{ GetIdempotencyKey() string }

// key returns the idempotency key of a request, "" if it has none.
func (o *op[Q, A, PQ, PA]) key(q *Q) string {
	if !o.keys {
		return ""
	}
	return keyOf(PQ(q))
}

// keyOf returns the idempotency key of a request of any operation, "" if it has none.
func keyOf(q any) string {
	if k, is := q.(keyed); is {
		return k.GetIdempotencyKey()
	}
	return ""
}

// idOf returns the id of a request: that of its idempotency key, or its request id, which
// has grown older on the way. The zero id if it has neither.
func (o *op[Q, A, PQ, PA]) idOf(q *Q, id *commonpb.RequestId) (reqid.ID, error) {
	key := o.key(q)
	if key == "" {
		return requestID(id)
	}
	bad := func(problem, hint string) (reqid.ID, error) {
		return reqid.ID{}, &failure.Error{Reason: failure.Invalid, Field: "idempotency_key", Message: problem, Hint: hint}
	}
	switch {
	//guard:key-or-id
	case o.ids && any(PQ(q)).(identified).GetRequestId() != nil:
		return bad("does not go with a request_id", "send one of them: a client that numbers its requests needs no key")
	//guard:key-length
	case len(key) > reqid.MaxKey:
		return bad("is too long: at most 64 bytes are allowed", "send a UUID, or a hash of what names the request")
	case !utf8.ValidString(key):
		return bad("is not valid UTF-8", "send a UUID, or a hash of what names the request in hexadecimal digits")
	}
	return reqid.KeyID(key), nil
}

// wireKey is the id of a request with an idempotency key, as nodes see it that pass it on:
// they may send it again, and find the part of a split object that it belongs to. The owner
// makes it of the key itself.
func wireKey(key string) *commonpb.RequestId {
	id := reqid.KeyID(key)
	client := binary.BigEndian.AppendUint64(make([]byte, 0, 16), id.Client.Hi)
	return &commonpb.RequestId{Client: binary.BigEndian.AppendUint64(client, id.Client.Lo), Sequence: id.Sequence}
}

// passable returns the error of a request that no other node may be sent: one that does not
// know idempotency keys would do it, and not look at its key.
func (o *op[Q, A, PQ, PA]) passable(s *Server, q *Q) error {
	//guard:key-level-passed
	if o.key(q) != "" && !s.cfg.Cluster.Table().Uses(owner.KeyLevel) {
		return owner.ErrKeyLevel
	}
	//guard:lock-level-passed
	if holdsAnew(q) {
		if err := s.levelOf(lockDowngrade.operation); err != nil {
			return err
		}
	}
	//guard:key-level-later
	if o.key(q) != "" && !s.cfg.Cluster.Table().Uses(o.keyLevel) {
		return owner.ErrLevel
	}
	//guard:check-level-passed
	if x, ok := any(q).(*limitpb.CheckRequest); ok && !s.cfg.Cluster.Table().Uses(checkLevel(x)) {
		return owner.ErrLevel
	}
	//guard:session-level-passed
	if x, ok := any(PQ(q)).(inSession); ok && x.GetSession() != nil {
		return s.levelOf(sessionKeepAlive)
	}
	return nil
}

// inSession are requests that may name a session.
type inSession interface{ GetSession() *commonpb.Session }
