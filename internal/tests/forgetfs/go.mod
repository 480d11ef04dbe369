module github.com/keystead/keystead/internal/tests/forgetfs

go 1.26.8

replace github.com/keystead/keystead => ../../..

require github.com/hanwen/go-fuse/v2 v2.12.1

require golang.org/x/sys v0.28.0 // indirect
