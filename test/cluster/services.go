// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
)

// servicesKnown is how long the Service of an address is not asked for again. The
// rules of kube-proxy are not newer.
const servicesKnown = time.Second

// Backend is a server behind a Service.
type Backend struct {
	// Address is where it listens, such as 127.0.0.1:9443.
	Address string
	// Ready reports whether it accepts new connections; nil means always. It is called
	// for each new connection, from many goroutines. See [HTTPReady].
	Ready func(ctx context.Context) bool
}

// HTTPReady returns a [Backend]'s Ready that asks a health URL, such as
// http://127.0.0.1:8081/readyz, and takes any answer but 200 for no. It waits
// 2 s for the answer, like the shipped readiness probe.
// Connections that begin at the same time share one answer, because a burst of probes is not what a replica gets from a kubelet.
func HTTPReady(url string) func(ctx context.Context) bool {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var probes singleflight.Group
	return func(ctx context.Context) bool {
		_, err, _ := probes.Do("", func() (any, error) {
			request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, url, nil)
			if err != nil {
				return nil, err
			}
			response, err := client.Do(request)
			if err != nil {
				return nil, err
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return nil, errors.New(response.Status)
			}
			return nil, nil
		})
		return err == nil
	}
}

// Services brings connections that the API server makes to a Service's ClusterIP
// to processes on this machine, as kube-proxy does on a node. The Service objects
// are ordinary ones, best without a selector: their endpoints are not used.
//
// As with kube-proxy, only new connections are balanced: one that is open stays
// with its backend until either side closes it. The methods may be called from
// many goroutines.
type Services struct {
	client kubernetes.Interface
	server *http.Server
	// known has the servicePort of each address that was resolved not long ago.
	known *utilcache.Expiring

	mu      sync.Mutex
	routes  map[servicePort]*route
	cut     map[string]bool
	tunnels map[*tunnel]bool
	opened  int
	closed  bool
	active  sync.WaitGroup
}

type servicePort struct {
	service types.NamespacedName
	port    int32
}

type route struct {
	backends []Backend
	next     int
}

// newServices serves on the listener until close is called.
func newServices(listener net.Listener, client kubernetes.Interface) *Services {
	s := &Services{
		client:  client,
		known:   utilcache.NewExpiring(),
		routes:  map[servicePort]*route{},
		cut:     map[string]bool{},
		tunnels: map[*tunnel]bool{},
	}
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: 10 * time.Second}
	s.active.Go(func() { _ = s.server.Serve(listener) })
	return s
}

// Route sends new connections to this port of the Service to the backends, which
// take turns. It replaces those of an earlier call; with none, connections are
// refused, as those to a Service without endpoints are. The Service need not
// exist yet.
func (s *Services) Route(namespace, service string, port int32, backends ...Backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes[servicePort{types.NamespacedName{Namespace: namespace, Name: service}, port}] =
		&route{backends: slices.Clone(backends)}
}

// Opened is how many connections there have been so far.
func (s *Services) Opened() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// Cut takes the network from the API server to the backend away, as a firewall
// that drops packets would: open connections carry nothing any more, and new ones
// neither open nor fail.
func (s *Services) Cut(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut[address] = true
	for t := range s.tunnels {
		if t.address == address {
			t.blackholed.Store(true)
		}
	}
}

// Heal undoes Cut. Connections that were cut are closed: what they lost is lost.
func (s *Services) Heal(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cut, address)
	for t := range s.tunnels {
		if t.address == address && t.blackholed.Load() {
			t.close()
		}
	}
}

// close ends all connections and waits for them.
func (s *Services) close() error {
	err := s.server.Close()
	s.mu.Lock()
	s.closed = true
	for t := range s.tunnels {
		t.close()
	}
	s.mu.Unlock()
	s.active.Wait()
	return err
}

// serve answers one CONNECT of the API server.
func (s *Services) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT is served here", http.StatusMethodNotAllowed)
		return
	}
	backend, err := s.pick(r.Context(), r.URL.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	t := &tunnel{address: backend}
	if !s.isCut(backend) {
		t.backend, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(r.Context(), "tcp", backend)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
	}
	t.client, _, err = http.NewResponseController(w).Hijack()
	if err != nil {
		t.close()
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if !s.add(t) {
		t.close()
		return
	}
	defer s.remove(t)
	t.pipe()
}

// add registers the tunnel, unless Services has been closed.
func (s *Services) add(t *tunnel) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.active.Add(1)
	s.tunnels[t] = true
	s.opened++
	if s.cut[t.address] || t.backend == nil {
		t.blackholed.Store(true)
	}
	return true
}

func (s *Services) remove(t *tunnel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.close()
	delete(s.tunnels, t)
	s.active.Done()
}

func (s *Services) isCut(address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut[address]
}

// pick chooses a backend for a connection to ClusterIP:port.
func (s *Services) pick(ctx context.Context, target string) (string, error) {
	host, portText, err := net.SplitHostPort(target)
	if err != nil {
		return "", fmt.Errorf("connect to %q: %w", target, err)
	}
	port, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		return "", fmt.Errorf("connect to %q: %w", target, err)
	}
	key, err := s.resolve(ctx, host, int32(port))
	if err != nil {
		return "", err
	}
	// A kubelet, too, asks a second time: one slow answer does not remove the last endpoint.
	for range 2 {
		for _, backend := range s.inTurn(key) {
			if backend.Ready == nil || backend.Ready(ctx) {
				return backend.Address, nil
			}
		}
	}
	return "", fmt.Errorf("service %s has no ready backend for port %d", key.service, port)
}

// inTurn returns the backends, beginning with the one whose turn it is.
func (s *Services) inTurn(key servicePort) []Backend {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.routes[key]
	if r == nil || len(r.backends) == 0 {
		return nil
	}
	first := r.next % len(r.backends)
	r.next++
	return slices.Concat(r.backends[first:], r.backends[:first])
}

// resolve finds the routed Service that has the ClusterIP.
func (s *Services) resolve(ctx context.Context, ip string, port int32) (servicePort, error) {
	address := net.JoinHostPort(ip, strconv.Itoa(int(port)))
	if found, ok := s.known.Get(address); ok {
		if key, ok := found.(servicePort); ok {
			return key, nil
		}
	}
	key, err := s.ask(ctx, ip, port)
	if err == nil {
		s.known.Set(address, key, servicesKnown)
	}
	return key, err
}

// ask asks the API server which of the routed Services has the ClusterIP.
func (s *Services) ask(ctx context.Context, ip string, port int32) (servicePort, error) {
	var failures []error
	for _, key := range s.routed(port) {
		service, err := s.client.CoreV1().Services(key.service.Namespace).Get(ctx, key.service.Name, metav1.GetOptions{})
		switch {
		case err == nil && slices.Contains(service.Spec.ClusterIPs, ip):
			return key, nil
		case err != nil && !apierrors.IsNotFound(err):
			failures = append(failures, err)
		}
	}
	failures = append(failures, fmt.Errorf("no service with the address %s and port %d is routed: call Services.Route for it", ip, port))
	return servicePort{}, errors.Join(failures...)
}

func (s *Services) routed(port int32) []servicePort {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []servicePort
	for key := range s.routes {
		if key.port == port {
			out = append(out, key)
		}
	}
	return out
}

// tunnel is a connection from the API server to a backend, by way of this
// process.
type tunnel struct {
	address    string
	client     net.Conn // nil until the connection is taken over
	backend    net.Conn // nil if the backend was cut off before
	blackholed atomic.Bool
	closing    sync.Once
}

// pipe carries bytes both ways until either side closes or, once the tunnel is
// blackholed, until both have given up or close is called.
func (t *tunnel) pipe() {
	if t.backend == nil {
		_, _ = io.Copy(io.Discard, t.client)
		return
	}
	if !t.blackholed.Load() {
		if _, err := io.WriteString(t.client, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
	}
	t.carry()
}

func (t *tunnel) carry() {
	var both sync.WaitGroup
	both.Go(func() { t.copy(t.backend, t.client) })
	both.Go(func() { t.copy(t.client, t.backend) })
	both.Wait()
}

// copy carries bytes one way, and loses them once the tunnel is blackholed.
func (t *tunnel) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !t.blackholed.Load() {
			if _, failed := to.Write(buffer[:n]); failed != nil {
				err = failed
			}
		}
		if err == nil {
			continue
		}
		// Through a network that is cut, neither side sees the other go.
		if !t.blackholed.Load() {
			t.close()
		}
		return
	}
}

// close closes both sides; it may be called more than once.
func (t *tunnel) close() {
	t.closing.Do(func() {
		for _, conn := range []net.Conn{t.client, t.backend} {
			if conn != nil {
				_ = conn.Close()
			}
		}
	})
}

const egressConfigFile = "egress.yaml"

// egressSelection contains the path of a socket.
const egressSelection = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
`

// listenForEgress opens the socket by which the API server's connections into the cluster network come to this process, and returns the
// API server's EgressSelectorConfiguration. It is a socket file and not a port, because the API server can do HTTP CONNECT over TCP with
// TLS only.
func (c *Cluster) listenForEgress(ctx context.Context) ([]byte, error) {
	path := c.file("egress.sock")
	var err error
	if c.egress, err = (&net.ListenConfig{}).Listen(ctx, "unix", path); err != nil {
		return nil, fmt.Errorf("listen on the egress socket (is TMPDIR too long a path?): %w", err)
	}
	return fmt.Appendf(nil, egressSelection, path), nil
}

// spreadConnections gives connections to the API servers in turn, like a load balancer without health checks. A connection
// that an API server refuses goes to the other one.
func (c *Cluster) spreadConnections(ctx context.Context) error {
	var err error
	if c.spread, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address(c.ports[bothAPIServers])); err != nil {
		return fmt.Errorf("listen for connections to the API servers: %w", err)
	}
	ports := [2]int{c.ports[APIServer], c.ports[OtherAPIServer]}
	ctx = context.WithoutCancel(ctx) // of Start
	go func() {
		for {
			client, err := c.spread.Accept()
			if err != nil {
				return // The cluster has been stopped.
			}
			go connect(ctx, client, ports[0], ports[1])
			ports[0], ports[1] = ports[1], ports[0]
		}
	}()
	return nil
}

// connect connects the client to the first port that accepts a connection.
func connect(ctx context.Context, client net.Conn, ports ...int) {
	for _, port := range ports {
		backend, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(port))
		if err == nil {
			t := &tunnel{client: client, backend: backend}
			t.carry()
			t.close()
			return
		}
	}
	_ = client.Close()
}
