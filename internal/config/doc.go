// Package config gives the flags of a command their values from four places.
// In order of strength:
//
//  1. the command line:           --grpc-addr=:7480
//  2. the environment:            KEYSTEAD_GRPC_ADDR=:7480
//  3. one YAML file:              grpc-addr: :7480
//  4. the default of the flag
//
// The settings are exactly the flags of the command, and nothing else declares
// them: [Load] writes the values that it finds onto the flags, so that the rest
// of the program reads ordinary flag variables and pflag's own parsers judge
// every value, wherever it came from.
//
// # Names
//
// A flag is written in lower case with hyphens. Its variable has the prefix
// KEYSTEAD_, upper case and underscores. In the file hyphens and underscores
// mean the same, and nested maps join with a hyphen: "grpc-addr: x",
// "grpc_addr: x" and "grpc: {addr: x}" are one setting, and giving it twice is
// an error. The file is named by --config or by KEYSTEAD_CONFIG; there is no
// file that is read without being named. Flags that ask for something rather
// than set something (--help, --version, --config, --show-config) are not
// settings.
//
// # Values
//
// The file's scalars are handed over as they are written, not as YAML would
// resolve them: "version: 1.10" stays 1.10. A flag that holds a list takes a
// YAML list, or comma-separated values (RFC 4180 quoting) in the environment and
// in a scalar. An empty variable and a YAML null mean "not set here". YAML
// aliases, merge keys and second documents are refused.
//
// # Unknown names
//
// A name that nobody knows is an error, since a misspelt limit that is silently
// ignored is worse than a start that fails; the error names the nearest setting.
// These names are known and are not settings of the command:
//
//   - Settings of another subcommand ([Input.Program]), in the environment and
//     in the file: one environment and one file serve the whole program.
//   - KEYSTEAD_CONFIG; KEYSTEAD_FENCING_TOKEN and any KEYSTEAD_LOCK_* that is no
//     setting, which `keystead lock` gives to the process that it runs; and
//     KEYSTEAD_ACTIVE_HELP and KEYSTEAD_COMPLETION_DESCRIPTIONS, which steer
//     shell completion.
//   - What Kubernetes gives to every pod beside a Service called "keystead":
//     KEYSTEAD_SERVICE_HOST, KEYSTEAD_SERVICE_PORT, KEYSTEAD_SERVICE_PORT_*,
//     KEYSTEAD_PORT, KEYSTEAD_PORT_<n>_TCP and the like. No flag may have such a
//     name: Load panics.
//   - The same for a Service called "keystead-…" (KEYSTEAD_ADMIN_SERVICE_HOST,
//     KEYSTEAD_ADMIN_PORT=tcp://…), unless the name is a setting's.
//
// [Sources] keeps what was passed over and why, beside where each value came from.
//
// # Not promised
//
// A value that a stronger source overrides is not parsed, so it may be wrong
// unnoticed. Nothing is watched: a changed file is read at the next start.
package config
