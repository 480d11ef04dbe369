// Package manual checks that what the documents name exists, and that what exists is
// documented. It reads README.md, docs and the pages in deploy; the tests hold them
// against the program itself.
//
//   - A command line that starts with keystead, in a block of shell or in a span of code,
//     is one that the program takes: its commands, its flags and, in a block, the values
//     of its flags.
//   - A flag (`--name`), a variable (KEYSTEAD_NAME) and a metric (keystead_name) exist.
//   - Each setting of `keystead server` has a row in a table, and so has each reason of an
//     error in docs/api.md; each metric that a node of a cluster shows is named.
//
// Whether a command does what the page says is for the tests of the command.
package manual
