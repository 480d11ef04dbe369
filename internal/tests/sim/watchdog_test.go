package sim

import (
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// stuckTime is how much real time a scene may take. One takes seconds, and on a busy
// machine a minute. What makes it stuck is in the package comment.
const stuckTime = slower * 200 * time.Second

// scenes are those that run now.
var scenes = watchdog{ages: map[string]time.Duration{}}

// watchdog ends the process, and shows what all goroutines do, when a scene is stuck.
type watchdog struct {
	mu   sync.Mutex
	ages map[string]time.Duration // guarded by mu: real time since they began
}

// begin says that a scene runs, until end is called.
func (w *watchdog) begin(name string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ages[name] = 0
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.ages, name)
	}
}

// watch runs outside of all bubbles, for as long as the process.
func (w *watchdog) watch() {
	for range time.Tick(time.Second) {
		w.mu.Lock()
		for name := range w.ages {
			if w.ages[name] += time.Second; w.ages[name] > stuckTime {
				debug.SetTraceback("all")
				panic(fmt.Sprintf("%s has not ended after %s of real time: it is stuck", name, stuckTime))
			}
		}
		w.mu.Unlock()
	}
}
