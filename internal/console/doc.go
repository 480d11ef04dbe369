// Package console is the page for people at the admin address: how the cluster is, as this
// node sees it, what the node does, its busiest keys, and what there is of a key that is
// asked for.
//
//	GET /          the page
//	GET /?key=K    with the owner, the standby and the objects of K
//
// It changes nothing. What it shows of the cluster and of keys it asks the API for, through
// the same chain as any caller: its bounds, its metrics, and whatever else is asked of
// callers. The rates and times of the last minutes come from a ring of samples of the
// node's own counters.
//
// # What keeps it harmless
//
// Keys, names, holders and metadata are text of anybody. They are escaped where they are
// written, what is not printable is written as an escape, and the browser is told to run
// and to load nothing but the page's own script and style (Content-Security-Policy). The
// page names no other host. On loopback it answers to no name of the Internet, so that no
// page of elsewhere reads it under a name that leads here.
//
// At most maxPages are made at a time, each within pageTime, and each has to be read within
// it: who does not read keeps the page from nobody for long.
package console
