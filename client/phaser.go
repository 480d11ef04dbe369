package client

import (
	"cmp"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	barrierpb "github.com/keystead/keystead/proto/keystead/barrier/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
)

// Phaser is a named phaser that many keys have, each its own: a barrier whose parties come and
// go. It is a small value: making one costs nothing, and it may be copied and kept.
type Phaser struct {
	c    *Client
	name string
}

// Phaser names a phaser. name "" = "phaser".
func (c *Client) Phaser(name string) Phaser { return Phaser{c, cmp.Or(name, "phaser")} }

// PhaserOption is how a party is registered: Lease, DropLost and WithParent.
type PhaserOption func(*registration)

type registration struct {
	ttl  time.Duration
	loss barrierpb.Loss

	parent *barrierpb.Parent // of the phaser; nil = as the first party has said
}

// Lease is how long a party is registered when it is not heard of any more: 10 ms to 24 h, or
// less if the node says so. Default DefaultLockTTL.
func Lease(ttl time.Duration) PhaserOption { return func(r *registration) { r.ttl = ttl } }

// DropLost has a phase go on without this party when its lease ends. Without it the phase is
// broken then, for all.
func DropLost() PhaserOption { return func(r *registration) { r.loss = barrierpb.Loss_LOSS_DROP } }

// WithParent makes the phaser of the key a party of that of another key, which has the same name: when
// all of its own parties have arrived, it arrives there, and its phase is passed when that of the
// parent is. So 100,000 parties cost the parent one arrival for each child. All parties of the child
// say the same parent. Its key has at most 64 bytes: it is the id that it has there.
func WithParent(key string) PhaserOption {
	return func(r *registration) { r.parent = &barrierpb.Parent{Key: key} }
}

// renewals is how often a lease is renewed in its time.
const renewals = 3

// Registered is a party of a phaser. It is registered until Leave, and renews its lease by itself.
type Registered struct {
	p          Phaser
	key, party string
	ttl        time.Duration
	phase      uint64

	stop context.CancelFunc
	done chan struct{} // closed when it is renewed no more
	lost chan struct{}
	once sync.Once
}

// Register makes a party, of 1 to 64 bytes and its own among all, one of the phaser of a key,
// from the phase on that is under way. Registered again, also by another process, it is the
// same party.
func (p Phaser) Register(ctx context.Context, key, party string, opts ...PhaserOption) (*Registered, error) {
	const what = "register party"
	o := registration{ttl: DefaultLockTTL, loss: barrierpb.Loss_LOSS_BREAK}
	for _, f := range opts {
		if f != nil {
			f(&o)
		}
	}
	var err error
	switch {
	case o.ttl < minLockTTL || o.ttl > maxLockTTL:
		err = invalid("Lease", "is %s; %s to %s are allowed", o.ttl, minLockTTL, maxLockTTL)
	case party == "" || len(party) > maxParty:
		err = invalid("party", "has %d bytes; choose 1 to %d", len(party), maxParty)
	}
	if err := cmp.Or(p.c.judge(ctx, key, p.name), err); err != nil {
		return nil, about(err, what, key, "")
	}
	op := p.c.ops.begin()
	defer op.finish()
	r, err := ask(ctx, p.c, toKey(key, false).of(what), op, func(ctx context.Context, conn *grpc.ClientConn, id *commonpb.RequestId, opts ...grpc.CallOption) (*barrierpb.RegisterResponse, error) {
		return barrierpb.NewBarrierServiceClient(conn).Register(ctx, &barrierpb.RegisterRequest{Key: key, Name: p.name, Party: party, TtlNs: int64(o.ttl), Loss: o.loss, Parent: o.parent, RequestId: id}, opts...)
	})
	if err != nil {
		return nil, err
	}
	m := &Registered{p: p, key: key, party: party, ttl: o.ttl, phase: r.Phase, done: make(chan struct{}), lost: make(chan struct{})}
	renewing, stop := context.WithCancel(p.c.ctx)
	if m.stop = stop; !p.c.start(func() { m.renew(renewing) }) {
		stop()
		return nil, about(errClosed(), what, key, "")
	}
	return m, nil
}

// renew prolongs the lease until the member leaves, or is not registered any more.
func (m *Registered) renew(ctx context.Context) {
	defer close(m.done)
	every := time.NewTicker(m.ttl / renewals)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		bounded, cancel := context.WithTimeout(ctx, m.ttl/renewals)
		r, err := ask(bounded, m.p.c, toKey(m.key, false).of("renew party"), nil, func(ctx context.Context, conn *grpc.ClientConn, _ *commonpb.RequestId, opts ...grpc.CallOption) (*barrierpb.RenewResponse, error) {
			return barrierpb.NewBarrierServiceClient(conn).Renew(ctx, &barrierpb.RenewRequest{Key: m.key, Name: m.p.name, Party: m.party, TtlNs: int64(m.ttl)}, opts...)
		})
		cancel()
		if err == nil && !r.Renewed {
			close(m.lost)
			return
		}
	}
}

// Lost is closed when the owner has said that the party is not registered any more: its lease
// ended, or it was lost with all nodes that kept the phaser. Register it again.
func (m *Registered) Lost() <-chan struct{} { return m.lost }

// Phase returns the phase that was under way when the party was registered: the first one that
// waits for it.
func (m *Registered) Phase() uint64 { return m.phase }

// Arrive has the member arrive for the phase that is under way, and does not wait. If that has to be
// one phase, because the work before was for it, name it with InPhase: a phase that was broken
// meanwhile is ErrPhaseOver then, and nothing counts in the next. The error is ErrNotRegistered if
// the member is not registered any more.
func (m *Registered) Arrive(ctx context.Context, opts ...BarrierOption) (Arrival, error) {
	return m.p.Arrive(ctx, m.key, m.party, opts...)
}

// Await waits until a phase is passed: see Barrier.Await.
func (m *Registered) Await(ctx context.Context, phase uint64) error {
	return m.p.Await(ctx, m.key, phase)
}

// Wait arrives, and waits until all have. If ctx ends before, the member has arrived all the
// same.
func (m *Registered) Wait(ctx context.Context, opts ...BarrierOption) (Arrival, error) {
	a, err := m.Arrive(ctx, opts...)
	if err != nil || a.Last {
		return a, err
	}
	return a, m.Await(ctx, a.Phase)
}

// Leave ends the registration: the phase goes on without the member.
func (m *Registered) Leave(ctx context.Context) error {
	m.once.Do(m.stop)
	<-m.done
	_, err := m.p.c.leave(ctx, m.key, m.p.name, m.party, 0)
	return err
}

// Arrive has a party that is registered arrive, also one that this process has not registered: see
// Registered.Arrive.
func (p Phaser) Arrive(ctx context.Context, key, party string, opts ...BarrierOption) (Arrival, error) {
	a := arrival{party: party}
	for _, o := range opts {
		if o != nil {
			o(&a)
		}
	}
	var err error
	if a.party != party || a.within != 0 {
		err = invalid("options", "of a party that is registered are InPhase; it has its name and its lease")
	}
	if err := cmp.Or(p.c.judge(ctx, key, p.name), err); err != nil {
		return Arrival{}, about(err, "arrive", key, "")
	}
	return p.c.arrive(ctx, key, p.name, 0, &a)
}

// Await waits until a phase is passed, also for those that are no members: see Barrier.Await.
func (p Phaser) Await(ctx context.Context, key string, phase uint64) error {
	return p.c.awaitPhase(ctx, key, p.name, phase)
}

// Break ends the phase that is under way: see Barrier.Break.
func (p Phaser) Break(ctx context.Context, key string) (bool, error) {
	return p.c.breakPhase(ctx, key, p.name)
}

// Inspect returns the phaser of a key, with some of its parties.
func (p Phaser) Inspect(ctx context.Context, key string) (BarrierState, error) {
	return p.c.inspectBarrier(ctx, key, p.name)
}
