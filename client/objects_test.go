package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/keystead/keystead/owner"
	clusterpb "github.com/keystead/keystead/proto/keystead/cluster/v1"
	commonpb "github.com/keystead/keystead/proto/keystead/common/v1"
	counterpb "github.com/keystead/keystead/proto/keystead/counter/v1"
	limitpb "github.com/keystead/keystead/proto/keystead/limit/v1"
	"github.com/keystead/keystead/ring/epoch/table"
)

// after has a client call f after each answer to a method.
func after(method string, f func(reply any)) Config {
	return Config{DialOptions: []grpc.DialOption{grpc.WithUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, m, req, reply, cc, opts...)
		if err == nil && m == method {
			f(reply)
		}
		return err
	})}}
}

// A list of all nodes tells that objects have moved between them since it began, although
// no node saw any go that was its own while it was listed.
func TestListObjectsOfAllNodes(t *testing.T) {
	for _, when := range []string{"never", "before the first page", "between two nodes"} {
		t.Run(when, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := build(t, []string{"n1", "n2", "n3"}, nil)
				w.apply(table.Command{Adopt: &table.Adopt{Level: owner.DeleteLevel}})
				cfg := direct
				if when == "before the first page" {
					cfg = after(clusterpb.ClusterService_ListMembers_FullMethodName, func(any) { w.ring("n1", "n2") })
				}
				c := w.client(cfg, "n1")
				keys := map[string]bool{}
				for i := range 30 {
					keys[fmt.Sprint("key-", i)] = true
					must(c.Counter("").Add(soon(t), fmt.Sprint("key-", i), 1))(t)
				}
				moved, err := c.Admin().ListObjects(soon(t), Filter{}, func(node string, o Object) bool {
					if when == "between two nodes" && len(keys) == 30 {
						w.ring("n1", "n2")
					}
					delete(keys, o.Key)
					return true
				})
				if err != nil || moved != (when != "never") || when == "never" && len(keys) > 0 {
					t.Errorf("moved: %v, %v; not listed: %v", moved, err, keys)
				}
			})
		})
	}
}

// An item of a batch that has neither a result nor an error is no answer: not 0, not "no", and
// it is not asked for again.
func TestItemsWithoutAnswers(t *testing.T) {
	bare := func(reply any) {
		switch r := reply.(type) {
		case *counterpb.BatchAddResponse:
			r.Results[1] = &counterpb.AddResult{}
		case *counterpb.BatchGetResponse:
			r.Results[1] = &counterpb.GetResult{}
		case *limitpb.BatchCheckResponse:
			r.Results[1] = &limitpb.CheckResult{Error: &commonpb.Error{}} // without a code
		}
	}
	for method, call := range map[string]func(t *testing.T, c *Client) [2]error{
		counterpb.CounterService_BatchAdd_FullMethodName: func(t *testing.T, c *Client) [2]error {
			r := must(c.BatchAdd(soon(t), []Add{{Counter: c.Counter(""), Key: "a", Delta: 1}, {Counter: c.Counter(""), Key: "b", Delta: 1}}))(t)
			return [2]error{r[0].Err, r[1].Err}
		},
		counterpb.CounterService_BatchGet_FullMethodName: func(t *testing.T, c *Client) [2]error {
			r := must(c.Counter("").BatchGet(soon(t), []string{"a", "b"}))(t)
			return [2]error{r[0].Err, r[1].Err}
		},
		limitpb.LimitService_BatchCheck_FullMethodName: func(t *testing.T, c *Client) [2]error {
			r := must(c.Limit("", PerMinute(5)).BatchCheck(soon(t), []string{"a", "b"}))(t)
			return [2]error{r[0].Err, r[1].Err}
		},
	} {
		t.Run(method, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := build(t, []string{"n1"}, nil)
				asked := 0
				c := w.client(after(method, func(reply any) { asked++; bare(reply) }), "n1")
				errs := call(t, c)
				var e *Error
				if errs[0] != nil || !errors.As(errs[1], &e) || !strings.Contains(e.Message, "of a later version") || e.Hint == "" || asked != 1 {
					t.Errorf("%v; asked %d times", errs, asked)
				}
				if changes := method != counterpb.CounterService_BatchGet_FullMethodName; changes != errors.Is(errs[1], ErrOutcomeUnknown) {
					t.Errorf("whether it may have taken effect: %v", errs[1])
				}
				synctest.Wait()
			})
		})
	}
}

// What an operator resets under a key is reset once, by whichever process.
func TestResetObjectUnderAKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := build(t, []string{"n1", "n2"}, nil)
		w.agree()
		time.Sleep(10 * time.Minute) // both nodes know all keys of the window
		one, two := w.client(Config{}, "n1"), w.client(Config{}, "n2")
		o := Object{Kind: KindCounter, Key: "k"}
		for _, c := range []*Client{one, two} {
			must(one.Counter("").Add(soon(t), "k", 7))(t)
			if existed, err := c.Admin().ResetObject(soon(t), o, IdempotencyKey("monday")); !existed || err != nil {
				t.Errorf("%v, %v", existed, err)
			}
		}
		if v := must(one.Counter("").Get(soon(t), "k"))(t); v.Value != 7 {
			t.Errorf("it was reset twice: %+v", v)
		}
		if _, err := one.Admin().ResetObject(soon(t), o, IdempotencyKey("")); !errors.Is(err, ErrInvalid) {
			t.Errorf("an empty key: %v", err)
		}
	})
}
