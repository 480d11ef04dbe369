package replay

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"unicode/utf8"
)

// keyStat is what is known of one key.
type keyStat struct {
	key     string
	worker  int   // the one that has the key
	base    int64 // the counter before the run; belongs to that worker
	noBase  bool  // base could not be read; belongs to that worker
	started bool  // base was read, or need not be; belongs to that worker

	// Guarded by table.mu. Invariant: yes + no + failed <= seen.
	seen   int64 // entries in the log
	yes    int64 // allowed or counted
	no     int64 // denied
	failed int64
}

// table knows every key of the log.
type table struct {
	maxKeys, workers int

	mu        sync.Mutex // guards everything below
	stats     map[string]*keyStat
	chunk     []keyStat // room for further keys; never grows in place
	bytes     int
	shortened int64 // keys
	yes       int64
	no        int64
	failed    int64
	reasons   map[string]int64 // items that failed, by reason
	first     string           // the first of them
}

func newTable(cfg *Config) *table {
	return &table{maxKeys: cfg.MaxKeys, workers: cfg.Concurrency, stats: map[string]*keyStat{}, reasons: map[string]int64{}}
}

const statChunk = 1024

// see counts one entry of a key.
func (t *table) see(key []byte, shortened bool) (*keyStat, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats[string(key)]
	if s == nil {
		switch {
		case len(t.stats) >= t.maxKeys:
			return nil, fmt.Errorf("the log has more than %d distinct keys; choose fields with fewer values, or split the log", t.maxKeys)
		case t.bytes+len(key) > maxKeyBytes:
			return nil, fmt.Errorf("the keys of the log take more than %d MiB; choose fields with shorter values, or split the log", maxKeyBytes>>20)
		}
		if len(t.chunk) == 0 {
			t.chunk = make([]keyStat, statChunk)
		}
		s, t.chunk = &t.chunk[0], t.chunk[1:]
		s.key, s.worker = string(key), len(t.stats)%t.workers
		t.stats[s.key] = s
		t.bytes += len(key)
		if shortened {
			t.shortened++
		}
	}
	s.seen++
	return s, nil
}

// outcome is the final result of one item.
type outcome struct {
	yes    bool   // allowed, or counted
	value  int64  // of a counter that was read
	reason string // the item failed; "" = it did not
	detail string // … and why, for people
	again  retry  // the item is still open
}

// tally notes the final outcome of one entry of a key.
func (t *table) tally(s *keyStat, o *outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case o.reason != "":
		s.failed++
		t.failed++
		t.failLocked(s.key, o)
	case o.yes:
		s.yes++
		t.yes++
	default:
		s.no++
		t.no++
	}
}

// fail notes a read that failed.
func (t *table) fail(key string, o *outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failLocked(key, o)
}

func (t *table) failLocked(key string, o *outcome) {
	if t.first == "" {
		t.first = fmt.Sprintf("key %q: %s (%s)", key, o.detail, o.reason)
	}
	t.reasons[o.reason]++
}

// all returns every key, in no order.
func (t *table) all() []*keyStat {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*keyStat, 0, len(t.stats))
	for _, s := range t.stats {
		all = append(all, s)
	}
	return all
}

const (
	maxKey     = 512 // bytes; as in the API
	hashMark   = "~sha256:"
	hashDigits = 32
)

// fit makes a key acceptable to the server: see the package comment. It returns
// key itself if it is acceptable already.
func fit(key []byte) (fitted []byte, changed bool) {
	if len(key) <= maxKey && utf8.Valid(key) {
		return key, false
	}
	sum := sha256.Sum256(key)
	const room = maxKey - len(hashMark) - hashDigits
	out := make([]byte, 0, maxKey)
	for len(key) > 0 {
		r, n := utf8.DecodeRune(key) // U+FFFD for a byte that is not UTF-8
		if len(out)+utf8.RuneLen(r) > room {
			break
		}
		out = utf8.AppendRune(out, r)
		key = key[n:]
	}
	return fmt.Appendf(out, "%s%x", hashMark, sum[:hashDigits/2]), true
}
