// Package bench measures a node from outside, side by side with bare gRPC.
//
// A run drives three servers, each a process of its own on this machine, with
// the same client and the same messages: a keystead node; an echo, which answers
// every call with constants of the same shape and is grpc-go at its defaults;
// and a tuned echo, which has the server options, the codec and the garbage
// collector setting of the node. What is left between the node and the tuned
// echo is the node's own work; what is between the echoes is what the settings
// bring.
//
// For each workload and concurrency the targets take turns, in an order that
// changes from round to round, so that whatever else the machine does falls on
// all of them. A ratio is the median of the rounds' ratios.
//
// Nodes that run alone and write what they decide to a disk are compared with the node, which does
// not. Limits of checks then refill slowly at all of them: what is full again before it could be lost
// is not written.
//
// A cluster is measured when it uses the formats that its nodes know, as one in production
// does: that begins ten seconds after the last node has come.
//
// It measures throughput and latency with client and server on the same cores.
// It does not measure a network.
package bench
