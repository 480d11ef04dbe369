// Command shop serves the example shop. It needs a Keystead node; examples/README.md has
// the lines to type.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/examples/shop"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "where to listen")
	nodes := flag.String("keystead", "127.0.0.1:7400", "addresses of Keystead nodes, separated by commas")
	perMinute := flag.Uint64("per-minute", 100, "requests a minute that a tenant may send")
	flag.Parse()
	c, err := client.Dial(context.Background(), strings.Split(*nodes, ",")...)
	if err != nil {
		log.Fatal(err)
	}
	s, err := shop.New(c, *perMinute)
	if err != nil {
		log.Fatal(err)
	}
	server := http.Server{Addr: *addr, Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second}
	log.Printf("open at http://%s", *addr)
	log.Fatal(server.ListenAndServe())
}
