package rpc

import commonpb "github.com/keystead/keystead/proto/keystead/common/v1"

// deciders lists who has decided the items of a batch, each node once for each epoch, so
// that ten thousand answers do not repeat a name.
type deciders struct {
	list []*commonpb.Decider
	at   map[decider]uint32 // index in list
	last uint32             // that was asked for: neighbours are mostly decided by one node
}

type decider struct {
	owner string
	epoch uint64
}

// move takes owner and epoch out of an answer, and returns the index of both.
func (d *deciders) move(owner *string, epoch *uint64) uint32 {
	by := decider{*owner, *epoch}
	*owner, *epoch = "", 0
	if int(d.last) < len(d.list) && d.list[d.last].Epoch == by.epoch && d.list[d.last].Owner == by.owner {
		return d.last
	}
	i, ok := d.at[by]
	if !ok {
		if d.at == nil {
			d.at = map[decider]uint32{}
		}
		i = uint32(len(d.list))
		d.at[by], d.list = i, append(d.list, &commonpb.Decider{Owner: by.owner, Epoch: by.epoch})
	}
	d.last = i
	return i
}
