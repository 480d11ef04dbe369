// Package xds serves the ring to stock Envoy and stock gRPC over xDS, so that they
// send a key to its owner by themselves: aggregated discovery (ADS), whole states
// and deltas, on the port of the API.
//
// # Picture
//
//	table, gossip ─► View ─► Build ─► snapshot for Envoy ──┐
//	(internal/node)    │              snapshot for gRPC ───┼─► streams
//	                   └─ the ring as it stands: of nodes whose change has ended
//
// Build is a pure function: a View and Settings in, resources out. Server keeps the
// resources of the last View for each kind of client, by the user agent that it
// states, and tells streams what has changed.
//
// # What is served
//
//	keystead-owners   CDS, EDS   the ring: RING_HASH on the key's header
//	keystead-any      CDS, EDS   the same nodes: LEAST_REQUEST, two choices
//	app-owners        CDS, EDS   the application beside each node, on the same ring
//	app-any           CDS, EDS   the same, two choices
//	keystead, app     RDS        with the key's header to owners, else to any;
//	                             keystead: keys that are split to any, too;
//	                             for gRPC in JavaScript to owners by a random hash
//	keystead          LDS        for Envoy: a listener; for gRPC: xds:///keystead
//	app               LDS        for gRPC only: xds:///app
//
// The size of a ring and its endpoints belong together: a ring of N nodes has 256·N
// points. CDS tells the one and EDS the other, so the endpoints of a ring have the
// number of its nodes in their name ("keystead-owners/3"), and the cluster names
// them: a client goes on with the old ring until it has the whole of the new one.
// Without that, Envoy would also wait 15 seconds for endpoints that have not changed
// whenever a cluster has.
//
// A key of which an object is split into parts has a route of its own in keystead,
// before the others, with the value of its header: any node takes its calls. Routes
// are all that changes when a key is split or whole again; weights of parts are no
// news. There are at most MaxSplitKeys such routes, and none for keys that fit into no
// header.
//
// # Guarantee
//
// A client that has taken in what it was sent computes the ring of package ring
// (gRPC up to 16 nodes, unless GRPC_RING_HASH_CAP is raised from its 4096 points).
// What a Publish changes is on its way to every stream when it returns: clusters, then
// endpoints, listeners, and routes. A name that nobody has is answered at once. A client
// that refuses resources keeps those that it has, and is not sent the refused ones
// again.
//
// # Non-guarantee
//
// Routing is a hint. A node that is cut off goes on telling what it knows, and a
// client may be behind: a node that is asked for a key of another forwards the call.
package xds
