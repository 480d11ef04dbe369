package rls

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/types/known/structpb"
)

// metadata returns the dynamic metadata of an answer, with the names of upstream: the
// domain, the descriptors, the hits, and what the configuration says of descriptors
// that are not over their limit.
func (c *call) metadata() *structpb.Struct {
	descriptors := make([]*structpb.Value, len(c.items))
	var passed map[string]*structpb.Value
	for i := range c.items {
		descriptors[i] = structpb.NewStructValue(c.req.descriptors[i].describe())
		if it := &c.items[i]; it.limit != nil && !it.unlimited &&
			!it.refused() { //guard:rls-metadata-passed
			passed = merged(passed, it.limit.Metadata.GetFields())
		}
	}
	fields := map[string]*structpb.Value{
		"domain":      structpb.NewStringValue(c.req.domain),
		"descriptors": structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
	}
	if c.req.hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(c.req.hits))
	}
	if len(passed) > 0 {
		fields["metadata"] = structpb.NewStructValue(&structpb.Struct{Fields: passed})
	}
	return &structpb.Struct{Fields: fields}
}

// describe is a descriptor of the request.
func (d *descriptor) describe() *structpb.Struct {
	entries := make([]*structpb.Value, len(d.entries))
	for n, e := range d.entries {
		entries[n] = structpb.NewStringValue(e.key + "=" + e.value)
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
	if o := d.override; o != nil {
		fields["limit"] = structpb.NewStringValue(o.String())
	}
	if d.hasHits {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(d.hits))
	}
	return &structpb.Struct{Fields: fields}
}

// String returns the limit as protobuf prints it: what is 0 is left out.
func (o *override) String() string {
	if o.requests == 0 {
		return "unit:" + o.unit.String()
	}
	return fmt.Sprintf("requests_per_unit:%d unit:%s", o.requests, o.unit)
}

// merged returns what a and b say together: where both have a value, the maps among them
// are merged, and of others a's counts. It changes neither: they belong to the
// configuration.
func merged(a, b map[string]*structpb.Value) map[string]*structpb.Value {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	all := maps.Clone(a)
	for name, v := range b {
		first, both := all[name]
		if !both {
			all[name] = v
		} else if x, y := first.GetStructValue(), v.GetStructValue(); x != nil && y != nil {
			all[name] = structpb.NewStructValue(&structpb.Struct{Fields: merged(x.Fields, y.Fields)})
		}
	}
	return all
}
