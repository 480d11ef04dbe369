// Package middleware limits what comes to an HTTP or gRPC server by a limit of Keystead, and has
// HTTP requests with an Idempotency-Key be handled once: see Idempotency.
//
//	c, err := client.Dial(ctx, "n1:7400", "n2:7400")
//	api, err := middleware.New(c.Limit("api", client.PerMinute(20)), middleware.Config{})
//	http.ListenAndServe(":8080", api.HTTP(middleware.HTTP{Key: middleware.ClientIP(middleware.Hops(1))})(mux))
//	grpc.NewServer(grpc.UnaryInterceptor(api.Unary(middleware.GRPC{})), grpc.StreamInterceptor(api.Stream(middleware.GRPC{})))
//
// The limit may be a policy of the cluster, by its name: New(c.Policy("per-user"), …). An admission policy says what a
// request needs by its fields: see NewAdmitter.
//
// # Guarantee
//
//   - A request over the limit does not reach the handler: it is answered with 429 and
//     Retry-After, or RESOURCE_EXHAUSTED with a RetryInfo.
//   - Every answer to a limited HTTP request says what is left, in the fields RateLimit and
//     RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers (revision 10 and later); gRPC
//     has them as metadata.
//   - A request is held up for Config.Timeout at most. When Keystead does not answer,
//     Config.OnFailure decides; after some failures in a row requests do not wait at all
//     for a second, but for one that tries.
//   - When Keystead answers that it cannot check a key, for its store is full or the key
//     holds something else, Config.OnRefusal decides: unless told otherwise, the process
//     limits such a key by itself. Who fills the store is not let through by that.
//   - What an Admitter has reserved for a request is settled when its handler returns, also if that panics
//     or the caller has left, and ends by itself after the time of the hold if the process dies.
//   - A client cannot choose its own key: ClientIP counts the entries of X-Forwarded-For
//     from the right, where trusted proxies wrote them. Keys begin with where they come
//     from ("ip:203.0.113.9", "header:x-tenant:acme"), so that a tenant who is named like
//     an address does not spend what belongs to that.
//
// # Non-guarantees
//
//   - Metadata that a server passes on with its calls does not go with checks: a caller may
//     have sent it.
//   - The limit is spent when a request comes, also if the handler then fails. Refund gives
//     it back.
//   - A stream is checked once, when it begins.
//   - A policy has no numbers here: FailLocal does not go with one, and OnRefusal is FailClosed unless told
//     otherwise. The fallback of a policy is for nodes to go by. RateLimit-Policy has the quota of
//     the answer without a window; that of an Admitter tells of the demand that has the least left.
//   - What a process limits by itself it limits for 10,000 keys: of more, some begin anew.
//   - Fields that tell what is left are hints: others may spend it.
package middleware
