// Package health judges a cluster by what one of its nodes says of it: what is wrong, the
// gravest first, and what to do about each. It only reads the answers of ClusterService,
// so the command line and the page of a node say the same.
package health
