package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/keystead/keystead/internal/durably"
	"github.com/keystead/keystead/internal/failure"
	"github.com/keystead/keystead/internal/policy"
	"github.com/keystead/keystead/internal/rpc"
	"github.com/keystead/keystead/ring/epoch/table"
)

// agreedPolicies reads policies that were agreed on.
func agreedPolicies(p *table.Policies, log *slog.Logger) *policy.Agreed {
	text, err := p.Text()
	a := policy.NewAgreed(p.Version, p.ID, text, err)
	if a.Err != nil {
		log.Error("the policies cannot be read: checks that name one are refused; upgrade this node", "version", a.Version, "error", a.Err)
	} else {
		log.Info("other policies are in force", "version", a.Version, "policies", a.Len())
	}
	return a
}

// policies implements rpc.Policies in a cluster.
type policies struct{ *cluster }

// InForce implements rpc.Policies.
func (p policies) InForce() *policy.InForce { return &p.inForce }

// proposeAgain is how long a proposal of policies waits before it is made again.
const proposeAgain = 50 * time.Millisecond

// Set implements rpc.Policies. The command is proposed under one id until it is known what
// became of it, as long as the caller waits.
func (p policies) Set(ctx context.Context, text []byte, expect uint64) (*policy.Agreed, error) {
	packed, err := table.PackPolicies(text)
	if err != nil {
		return nil, failure.Invalidf("text", "has %v", err)
	}
	c := table.Command{ID: p.newID(), Policies: &table.SetPolicies{Expect: expect, Packed: packed}}
	for asked := false; ; {
		if !p.Table().Uses(table.PoliciesLevel) {
			return nil, errNoPoliciesYet
		}
		version, err := p.group.Propose(ctx, c)
		why := (*table.Refused)(nil)
		switch {
		case err == nil:
			return p.heard(ctx, version)
		case errors.As(err, &why) && asked:
			// It may have been set the first time, and replaced since.
			return nil, unknownPolicies(why)
		case errors.As(err, &why):
			return nil, &failure.Error{Reason: failure.PolicyConflict, Message: why.Error() + "; nothing happened",
				Hint: "others were applied meanwhile: look at them with `keystead policy show`, and apply again"}
		case errors.Is(err, table.ErrNotProposed):
		default:
			asked = true
		}
		if !pause(ctx, proposeAgain) {
			if asked {
				return nil, unknownPolicies(err)
			}
			return nil, &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
				Message: "there is no leader to agree on policies with; nothing happened", Hint: "`keystead status` shows what is wrong"}
		}
	}
}

// heard waits until this node goes by policies that were agreed on.
func (p policies) heard(ctx context.Context, version uint64) (*policy.Agreed, error) {
	if _, err := p.inForce.Await(ctx, version); err != nil {
		return nil, unknownPolicies(fmt.Errorf("they were agreed on as version %d, and this node has not heard of it yet", version))
	}
	return &policy.Agreed{Version: version}, nil
}

func unknownPolicies(err error) error {
	return &failure.Error{Reason: failure.OutcomeUnknown, Message: "the policies may have been applied: " + err.Error(),
		Hint: "`keystead policy show` says which are in force"}
}

var errNoPoliciesYet = &failure.Error{Reason: failure.Unavailable, RetryAfter: time.Second,
	Message: "not all nodes of the cluster know policies yet; nothing happened",
	Hint:    "try again when all nodes are upgraded: `keystead status` shows their versions"}

// standalonePolicies implements rpc.Policies for a node that runs alone.
type standalonePolicies struct {
	inForce policy.InForce
	path    string        // of the file that keeps them; "" = nowhere
	epoch   func() uint64 // the version is not below it: see table.Policies.After
	mu      sync.Mutex    // one Set at a time
}

// policiesFile is the file in the data directory that keeps a standalone node's policies.
const policiesFile = "policies.json"

// chooseStandalone has the store go by the rule and the policies of a node that runs alone.
func (n *Node) chooseStandalone() error {
	n.rule = &standalone{dates: &dates{clock: n.cfg.Clock.Now, wall: n.cfg.Wires.Wall}}
	p := &n.rule.policies
	p.epoch = n.rule.epoch.Load
	n.cfg.Store.Rule, n.cfg.Store.Policies = n.rule, &p.inForce
	return p.open(n.cfg.DataDir, n.cfg.Log)
}

// policies are those of the node, for its API.
func (n *Node) policies() rpc.Policies {
	if n.cluster != nil {
		return policies{n.cluster}
	}
	return &n.rule.policies
}

// open reads the policies that the node was given before.
func (p *standalonePolicies) open(dir string, log *slog.Logger) error {
	if dir == "" {
		return nil
	}
	p.path = filepath.Join(dir, policiesFile)
	b, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var kept table.Policies
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err == nil && kept.Version == 0 {
		err = errors.New("it has no version")
	}
	if err != nil {
		return fmt.Errorf("the policies in %s cannot be read: %w; move the file away to start without, and apply them again", p.path, err)
	}
	p.inForce.Put(agreedPolicies(&kept, log))
	return nil
}

// InForce implements rpc.Policies.
func (p *standalonePolicies) InForce() *policy.InForce { return &p.inForce }

// Set implements rpc.Policies.
func (p *standalonePolicies) Set(_ context.Context, text []byte, expect uint64) (*policy.Agreed, error) {
	packed, err := table.PackPolicies(text)
	if err != nil {
		return nil, failure.Invalidf("text", "has %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.inForce.Load()
	switch {
	case was.Version != 0 && bytes.Equal(was.Text, text):
		return was, nil
	case was.Version != expect:
		return nil, &failure.Error{Reason: failure.PolicyConflict,
			Message: fmt.Sprintf("the policies have version %d, and not %d; nothing happened", was.Version, expect),
			Hint:    "others were applied meanwhile: look at them with `keystead policy show`, and apply again"}
	}
	next := table.Policies{Version: max(was.Version+1, p.epoch()), Packed: packed}
	if p.path != "" {
		b, err := json.Marshal(next)
		if err == nil {
			err = durably.Replace(p.path, append(b, '\n'))
		}
		if err != nil { // what the file holds after that is not known
			return nil, unknownPolicies(fmt.Errorf("keeping them: %w", err))
		}
	}
	a := policy.NewAgreed(next.Version, "", text, nil)
	p.inForce.Put(a)
	return a, nil
}
