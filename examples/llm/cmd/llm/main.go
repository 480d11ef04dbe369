// Command llm serves the example gateway before a language model. It needs a Keystead node;
// examples/README.md has the lines to type.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/keystead/keystead/client"
	"github.com/keystead/keystead/examples/llm"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8081", "where to listen")
	nodes := flag.String("keystead", "127.0.0.1:7400", "addresses of Keystead nodes, separated by commas")
	model := flag.String("model", "", "URL of a model's server, as http://127.0.0.1:11434; none = a parrot")
	perMinute := flag.Uint64("tokens-per-minute", 10_000, "tokens a minute that an organisation may use")
	running := flag.Int64("running", 8, "requests of an organisation that may run at a time")
	flag.Parse()
	c, err := client.Dial(context.Background(), strings.Split(*nodes, ",")...)
	if err != nil {
		log.Fatal(err)
	}
	if *model == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		*model = "http://" + l.Addr().String()
		go func() {
			log.Fatal((&http.Server{Handler: llm.Parrot(50 * time.Millisecond), ReadHeaderTimeout: 5 * time.Second}).Serve(l))
		}()
	}
	g := llm.New(c, strings.TrimSuffix(*model, "/"), llm.Config{TPM: client.PerMinute(*perMinute), Running: *running})
	server := http.Server{Addr: *addr, Handler: g.Handler(), ReadHeaderTimeout: 5 * time.Second}
	log.Printf("a gateway to %s at http://%s", *model, *addr)
	log.Fatal(server.ListenAndServe())
}
