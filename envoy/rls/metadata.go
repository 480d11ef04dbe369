package rls

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"
)

// metadata is the dynamic metadata of an answer, with the names of upstream: the
// domain, the descriptors, the hits, and the indexes of descriptors in quota mode
// that are over their limit.
func (c *call) metadata() *structpb.Struct {
	descriptors, violations := make([]*structpb.Value, len(c.items)), []*structpb.Value{}
	quota := false
	for i := range c.items {
		d, it := &c.req.descriptors[i], &c.items[i]
		entries := make([]*structpb.Value, len(d.entries))
		for n, e := range d.entries {
			entries[n] = structpb.NewStringValue(e.key + "=" + e.value)
		}
		fields := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
		if o := d.override; o != nil {
			fields["limit"] = structpb.NewStringValue(fmt.Sprintf("requests_per_unit:%d unit:%s", o.requests, o.unit))
		}
		if d.hasHits {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(d.hits))
		}
		descriptors[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
		if it.limit != nil && it.limit.Quota {
			quota = true
			if it.denied {
				violations = append(violations, structpb.NewNumberValue(float64(i)))
			}
		}
	}
	fields := map[string]*structpb.Value{
		"domain":           structpb.NewStringValue(c.req.domain),
		"descriptors":      structpb.NewListValue(&structpb.ListValue{Values: descriptors}),
		"quotaModeEnabled": structpb.NewBoolValue(quota),
	}
	if c.req.hits != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(c.req.hits))
	}
	if len(violations) > 0 {
		fields["quotaModeViolations"] = structpb.NewListValue(&structpb.ListValue{Values: violations})
	}
	return &structpb.Struct{Fields: fields}
}
