package p2c_test

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keystead/keystead/client/p2c"
)

func Example() {
	p2c.Register() // at the start of main

	conn, err := grpc.NewClient("dns:///ids.example.org:7400",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(p2c.Config{}.ServiceConfig()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	// Each call on conn goes to one of two of the backends that the name stands for.
}

func ExampleConfig_ServiceConfig() {
	fmt.Println(p2c.Config{Probe: 5 * time.Second}.ServiceConfig())
	// Output: {"loadBalancingConfig":[{"keystead_p2c":{"probe":"5s"}}]}
}

// The arithmetic alone, for who has connections of another kind.
func ExampleChooser() {
	cfg, err := p2c.Config{}.WithDefaults()
	if err != nil {
		fmt.Println(err)
		return
	}
	const ms = int64(time.Millisecond)
	names := []string{"quick", "slow"}
	loads := []*p2c.Load{p2c.NewLoad(cfg, 0), p2c.NewLoad(cfg, 0)}
	for i, took := range []int64{2 * ms, 20 * ms} {
		loads[i].Begin(0)
		loads[i].End(0, took, p2c.Answered)
	}
	random := uint64(0x123456789abcdef0) // math/rand/v2.Uint64() in earnest
	i := p2c.NewChooser(loads).Next(30*ms, random)
	fmt.Println(names[i])
	// Output: quick
}
