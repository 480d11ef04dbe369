package epoch

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// ErrBelongs says that a node did not make a cluster, because it belongs to one.
var ErrBelongs = errors.New("the node belongs to a cluster already")

// Found makes the cluster when the group runs, as Config.Bootstrap does before: this
// node is its first and only voter. The caller has to know that there is no
// other cluster. still is asked last, just before the log is written, whether that holds:
// the process may have been stopped for a while since Found was called. Its error is
// returned, and no cluster was made. A node that has a log does nothing and says
// ErrBelongs; after any other error it may be tried again.
func (g *Group) Found(still func() error) error {
	s := g.cfg.Storage
	switch empty, err := s.Empty(); {
	case err != nil:
		return fmt.Errorf("reading the log: %w", err)
	case !empty:
		return ErrBelongs
	}
	uid := *g.uid.Load() // of belong, if it is to make the cluster as well
	drawn := uid == ""
	if drawn {
		uid = draw()
		if err := s.setUID(uid); err != nil {
			return err
		}
	}
	g.uid.Store(&uid) // from now on, others' leaders are refused
	//guard:founders-late
	if err := still(); err != nil {
		return errors.Join(err, g.undraw(drawn))
	}
	err := g.raft.BootstrapCluster(raft.Configuration{
		Servers: []raft.Server{{Suffrage: raft.Voter, ID: g.self, Address: joinAddr(g.self, g.cfg.RaftAddr)}},
	}).Error()
	switch {
	case errors.Is(err, raft.ErrCantBootstrap):
		// A leader was quicker: the log that it sends says whose it is.
		return errors.Join(ErrBelongs, g.undraw(drawn))
	case err != nil:
		return fmt.Errorf("making the cluster: %w", err)
	}
	return nil
}

// undraw forgets the number of a cluster that was not made, if it was drawn for it.
func (g *Group) undraw(drawn bool) error {
	if !drawn {
		return nil
	}
	none := ""
	g.uid.Store(&none)
	return g.cfg.Storage.setUID(none)
}
