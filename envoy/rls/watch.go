package rls

import (
	"context"
	"crypto/sha256"
	"os"
	"slices"
	"time"
)

// loaded is a configuration that was read.
type loaded struct {
	rules *Rules            // in force
	at    time.Time         // when they were read
	last  time.Time         // when files were read last
	sum   [sha256.Size]byte // of what was read then
	seen  []seen            // how the files looked just before
	// broken is what is wrong with the files that were read last, when rules are
	// those from before.
	broken Problems
}

// seen is how a file looked.
type seen struct {
	path string
	info os.FileInfo // nil = it was not there
}

// same reports whether a file looks as it did.
func (a seen) same(b seen) bool {
	if a.path != b.path || (a.info == nil) != (b.info == nil) {
		return false
	}
	return a.info == nil || os.SameFile(a.info, b.info) && a.info.Size() == b.info.Size() && a.info.ModTime().Equal(b.info.ModTime())
}

// clockGrain is the age from which the time of a change is taken to tell a file from
// a later one: the clocks of file systems are coarse.
const clockGrain = 2 * time.Second

// inspect stats the files without reading them.
func inspect(path string) []seen {
	files, problems := list([]string{path})
	for _, p := range problems {
		files = append(files, p.File)
	}
	all := make([]seen, len(files))
	for i, f := range files {
		all[i].path = f
		if info, err := os.Stat(f); err == nil {
			all[i].info = info
		}
	}
	return all
}

// changed reports whether the files may not be those that were read at a moment.
func (n *loaded) changed(now []seen) bool {
	return !slices.EqualFunc(n.seen, now, seen.same) || slices.ContainsFunc(now, func(s seen) bool {
		return s.info != nil && n.last.Sub(s.info.ModTime()) < clockGrain
	})
}

// read reads the files.
func (s *Service) read() *loaded {
	now := time.Now()
	n := &loaded{at: now, last: now, seen: inspect(s.cfg.Path)}
	sum := sha256.New()
	rules, err := load([]string{s.cfg.Path}, LoadOptions{MergeDomains: s.cfg.MergeDomains, MaxHold: s.cfg.MaxHold}, sum)
	sum.Sum(n.sum[:0])
	n.rules, n.broken = rules, asProblems(err)
	return n
}

// watch reads the files again when they change, until ctx ends. What is new is taken
// when it is there twice in a row: the first time, somebody may be at writing it.
func (s *Service) watch(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Poll)
	defer tick.Stop()
	var last *loaded // what was new the last time; nil = nothing was
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			before := s.now.Load()
			if !before.changed(inspect(s.cfg.Path)) {
				last = nil
				continue
			}
			next := s.read()
			if next.sum == before.sum || last != nil && last.sum == next.sum {
				s.adopt(before, next)
				last = nil
				continue
			}
			last = next
		}
	}
}

// adopt puts what was read into force, unless it is broken.
func (s *Service) adopt(before, next *loaded) {
	if next.sum == before.sum {
		// Nothing new. What is remembered is how the files look, and since when.
		next.rules, next.at, next.broken = before.rules, before.at, before.broken
		s.now.Store(next)
		return
	}
	s.metrics.loads[next.broken == nil].Inc()
	if next.broken != nil {
		s.cfg.Log.Error("the files of the rate limit service are broken; those from before stay in force", "path", s.cfg.Path, "problem", next.broken[0].String(), "problems", len(next.broken))
		next.rules, next.at = before.rules, before.at
		s.now.Store(next)
		return
	}
	s.bind(next.rules)
	s.now.Store(next)
	s.cfg.Log.Info("rate limits read again", "path", s.cfg.Path, "files", len(next.rules.files), "domains", len(next.rules.domains), "limits", len(next.rules.limits))
}
