// Package deploy reads what stands in deploy/ and judges whether it fits the
// program and itself: the image, the systemd unit, compose, Kubernetes, the alerts and
// the dashboard. No tool that would run these things is needed for that, and none of
// them can tell what a setting of the program means.
//
// The package is a module of its own and imports nothing of the program: the files are
// read by the libraries that their ecosystems read them with, and the program's go.mod
// knows none of them. `go test ./...` at the top does not come here.
//
// # What is judged
//
// Every file is read strictly: a key that its library does not know is a finding. Then
//
//   - each node that a file starts has settings that the program takes ([Resolve] asks
//     the program itself), and more time to end than it needs;
//   - selectors match labels, ports have the numbers of the settings, probes ask pages
//     that there are, volumes cover the data directory, memory limits fit each other;
//   - the founders are nodes of the deployment, and nothing starts with --bootstrap;
//   - each alert has a test and a section in docs/operations.md, and each metric that is
//     named anywhere is one that a running node shows.
//
// What the program itself shows in a format of others is judged here, too: the OpenAPI
// document of its HTTP API, and whether requests and answers are as it says.
//
// The tests of this package run the program as the files say: the three nodes of
// compose and of Kubernetes, and the unit's command.
//
// # Not judged
//
// Whether Docker, Kubernetes and Envoy take the files: they do not run here. Their
// libraries know keys and types, and not all values that a server refuses.
package deploy
