package rls

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Bounds of a configuration. Real ones have tens to thousands of descriptors; the
// bounds keep a wrong path (a log, a device) and a file full of aliases from
// filling memory.
const (
	MaxFileSize    = 4 << 20 // bytes of one file
	MaxFiles       = 256
	MaxDescriptors = 50_000 // of all files
	MaxDepth       = 16     // descriptors within descriptors
)

// LoadOptions say how files are read.
type LoadOptions struct {
	// MergeDomains lets several files add to one domain. Otherwise a domain that
	// comes a second time is an error, as it is upstream.
	MergeDomains bool
	// MaxHold is the longest hold of a slot. 0 = 24 h.
	MaxHold time.Duration
}

// Load reads configurations: of each path the file, or if it is a directory the
// files in it that end in .yaml or .yml and do not begin with a point, sorted by
// name. The error is of type Problems.
func Load(paths []string, opts LoadOptions) (*Rules, error) { return load(paths, opts, io.Discard) }

// load is Load, which writes to sum what tells what it has read from anything
// else.
func load(paths []string, opts LoadOptions, sum io.Writer) (*Rules, error) {
	files, problems := list(paths)
	for _, p := range problems {
		fmt.Fprintln(sum, p)
	}
	l := &loader{opts: opts, rules: &Rules{domains: map[string]*level{}}, problems: problems}
	for _, f := range files {
		data, err := readFile(f)
		fmt.Fprintln(sum, len(f), f, err, len(data))
		if err != nil {
			l.problems = append(l.problems, unreadable(f, err))
			continue
		}
		_, _ = sum.Write(data)
		if !l.full() {
			l.file(f, data)
		}
	}
	if len(l.problems) > 0 {
		return nil, l.problems[:min(len(l.problems), maxProblems)]
	}
	return l.rules, nil
}

// errTooLarge is that a file is larger than MaxFileSize.
var errTooLarge = fmt.Errorf("the file has more than %d bytes", MaxFileSize)

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err == nil && len(data) > MaxFileSize {
		err = errTooLarge
	}
	return data, err
}

// unreadable returns the problem of a file that could not be read.
func unreadable(path string, err error) Problem {
	p := Problem{File: path, Message: "cannot be read: " + err.Error()}
	var cause *fs.PathError
	switch {
	case errors.Is(err, errTooLarge):
		p.Message, p.Hint = err.Error(), "is this the right file? Split it into several of a directory if it is"
	case errors.Is(err, errCrowdedDir):
		p.Message, p.Hint = err.Error(), "is this the right directory? Give the limits one of their own if it is"
	case errors.Is(err, fs.ErrNotExist):
		p.Message, p.Hint = "no such file or directory", "give a YAML file, or a directory of them"
	case errors.As(err, &cause):
		p.Message = "cannot be read: " + cause.Err.Error()
	}
	return p
}

// list returns the files that paths stand for.
func list(paths []string) (files []string, problems Problems) {
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			problems = append(problems, unreadable(path, err))
		case !info.IsDir():
			files = append(files, path)
		default:
			in, err := listDir(path)
			if err != nil {
				problems = append(problems, unreadable(path, err))
			} else if len(in) == 0 {
				problems = append(problems, Problem{File: path, Message: "the directory has no files that end in .yaml or .yml"})
			}
			files = append(files, in...)
		}
	}
	if len(files) > MaxFiles {
		problems = append(problems, Problem{File: files[MaxFiles], Message: fmt.Sprintf("there are %d files; at most %d are read", len(files), MaxFiles),
			Hint: "is this the right directory?"})
		files = files[:MaxFiles]
	}
	return files, problems
}

func listDir(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxNames + 1)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if len(names) > maxNames {
		return nil, errCrowdedDir
	}
	slices.Sort(names)
	var files []string
	for _, name := range names {
		if ext := filepath.Ext(name); strings.HasPrefix(name, ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue // what is gone since is an error when it is read
		}
		files = append(files, path)
	}
	return files, nil
}

// maxNames bounds the names in a directory, whatever they end in: it is looked at
// every second.
const maxNames = 4096

// errCrowdedDir is that a directory has more than maxNames.
var errCrowdedDir = fmt.Errorf("the directory has more than %d names", maxNames)
