package disk

import "math/bits"

// Sector is the size of the pieces of a file that are kept, or torn, as a whole.
const Sector = 512

// pieces is a set of pieces of a file, by their number.
type pieces []uint64

// add adds pieces from one to before another.
func (p *pieces) add(from, to int64) {
	for n := int(to+63) / 64; len(*p) < n; {
		*p = append(*p, 0)
	}
	for ; from < to; from++ {
		(*p)[from/64] |= 1 << (from % 64)
	}
}

func (p pieces) has(i int64) bool { return i/64 < int64(len(p)) && p[i/64]&(1<<(i%64)) != 0 }

// cut removes all from one on.
func (p pieces) cut(from int64) {
	for i := int(from / 64); i < len(p); i++ {
		if int64(i)*64 >= from {
			p[i] = 0
		} else {
			p[i] &= 1<<(from%64) - 1
		}
	}
}

func (p pieces) count() (n int64) {
	for _, w := range p {
		n += int64(bits.OnesCount64(w))
	}
	return n
}

// runs calls f with each run of pieces, from one to before another.
func (p pieces) runs(f func(from, to int64) error) error {
	for i := int64(0); i < int64(len(p))*64; {
		if w := p[i/64] >> (i % 64); w == 0 {
			i = (i/64 + 1) * 64
			continue
		} else if w&1 == 0 {
			i += int64(bits.TrailingZeros64(w))
		}
		from := i
		for i < int64(len(p))*64 && p.has(i) {
			i++
		}
		if err := f(from, i); err != nil {
			return err
		}
	}
	return nil
}

// sectors returns how many pieces so many bytes need.
func sectors(size int64) int64 { return (size + Sector - 1) / Sector }
