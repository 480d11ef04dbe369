package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// syncsOfOne is how many syncs a probe of the file system does.
const syncsOfOne = 200

// probes are ways to put 4 KiB on a disk, by one writer that does nothing else.
var probes = []struct {
	what string
	size int64 // of the file before the first write
	sync func(*os.File) error
}{
	{"4 KiB appended, fsync", 0, (*os.File).Sync},
	{"4 KiB over what is there, fdatasync", syncsOfOne * 4096, func(f *os.File) error { return syscall.Fdatasync(int(f.Fd())) }},
}

// diskTime is how long the file system takes, in ms.
type diskTime struct {
	What string  `json:"what"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	all  []float64
}

// probeAll does each probe once in a directory, and adds what it took to times.
func probeAll(dir string, times []diskTime) error {
	for i, p := range probes {
		took, err := probe(dir, p.size, p.sync)
		if err != nil {
			return err
		}
		t := &times[i]
		t.What, t.all = p.what, append(t.all, took...)
		t.P50, t.P99 = percentile(t.all, 50), percentile(t.all, 99)
	}
	return nil
}

// probe returns how long each write of a probe takes until it is on disk, in ms.
func probe(dir string, size int64, sync func(*os.File) error) (took []float64, err error) {
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4096)
	for range size / int64(len(block)) {
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	for i := range syncsOfOne {
		block[0] = byte(i + 1)
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		if err := sync(f); err != nil {
			return nil, err
		}
		took = append(took, ms(time.Since(began)))
	}
	return took, nil
}

// Numbers of file systems that are in memory, of statfs(2).
const (
	tmpfs = 0x01021994
	ramfs = 0x858458f6
)

// onDisk refuses a directory that is in memory: a sync there costs nothing.
func onDisk(dir string) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if inMemory(uint32(fs.Type)) {
		return fmt.Errorf("%s is in memory\n  hint: choose a directory on a disk with -data", dir)
	}
	return nil
}

func inMemory(kind uint32) bool { return kind == tmpfs || kind == ramfs }

// syncs returns how often a server has synced what it was told. A figure of several members is of
// all of them.
type syncs func() (float64, error)

// metric returns the value of a metric without labels in a page of Prometheus' text format.
func metric(page, name string) (float64, error) {
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// writes returns how many write calls a process has made: files and connections.
func writes(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "syscw:" {
			return strconv.ParseFloat(f[1], 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/io has no syscw", pid)
}

// tick is the unit of processor time in /proc, on all of Linux' platforms that Go has.
const tick = time.Second / 100

// used returns the processor time of some processes.
func used(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		_, after, _ := strings.Cut(string(text), ") ") // behind the name
		f := strings.Fields(after)
		if len(f) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
		}
		user, err1 := strconv.Atoi(f[11])
		system, err2 := strconv.Atoi(f[12])
		if err := errors.Join(err1, err2); err != nil {
			return 0, err
		}
		sum += time.Duration(user+system) * tick
	}
	return sum, nil
}

// percentile returns the value below which so many of 100 are.
func percentile(v []float64, p int) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[min(len(v)-1, len(v)*p/100)]
}
