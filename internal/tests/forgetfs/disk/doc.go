// Package disk is a file system in memory that knows what of it was synced.
//
// # Picture
//
//	               ┌ live: what programs read and write ┐
//	Write, Rename …▶ Inode: data, entries, dirty pieces │
//	               └───────────────┬────────────────────┘
//	                  Sync of a file: its data │ Sync of a directory: its names
//	                               ▼
//	               the backing directory: what a power cut leaves
//
// The backing directory is a plain one. At every moment it holds what a power cut would
// leave, also if the process of the file system is killed. So there is nothing to be done
// for a crash, but to let nothing happen after it.
//
// # Rules
//
//   - Written data, and the size of a file, are forgotten unless Sync of the file follows.
//   - A name that was made, renamed or removed is as before unless Sync of its directory
//     follows. Sync of a file does not keep its name.
//   - A file of which the name was kept and the data was not is empty.
//   - A rename between two directories is one step: Sync of either keeps both sides.
//   - With Ext4, names are kept in the order in which they changed, all of them by any
//     Sync; and a file that replaces another one by rename has its data kept with its name.
//   - With Torn, a crash keeps some of what was not synced: pieces of 512 or of 4096 bytes,
//     sizes, and names as far as a moment that is chosen for each directory.
//   - A Sync that fails drops the data that it should have kept: programs still read it,
//     the next Sync succeeds, and a crash forgets it. So does Linux.
//
// # Non-guarantees
//
// Modes and times are not part of what is kept. There are no symbolic links, no devices and
// no extended attributes. Nothing is kept by itself after a time, as real systems do.
// The backing directory is not synced itself: a power cut of the machine is not survived.
package disk
