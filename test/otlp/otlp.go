// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package otlp receives spans as an OpenTelemetry collector does: by OTLP over gRPC. It
// reads the few fields that tests look at, so that the module needs neither a gRPC server
// nor the generated types.
package otlp

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exportPath is the method of the trace service that exporters call.
const exportPath = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// Span is a span as far as tests look at it.
type Span struct {
	Name string
	// TraceID, ID and ParentID are hexadecimal. ParentID is empty for a root.
	TraceID, ID, ParentID string
	// Server says that the kind is SPAN_KIND_SERVER, Failed that the status is an error.
	Server, Failed bool
	Start, End     time.Time
	// Attributes are those with a text as value.
	Attributes map[string]string
}

// Receiver keeps the spans that it receives. It is safe for concurrent use.
type Receiver struct {
	address string

	mu    sync.Mutex
	spans []*Span
	// services are the service.name of the resources that sent spans.
	services []string
}

// Receive starts a Receiver, which ends with the test.
func Receive(t *testing.T) *Receiver {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &Receiver{address: listener.Addr().String()}
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: r, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return r
}

// Address is host and port.
func (r *Receiver) Address() string { return r.address }

// ServeHTTP implements the trace service of gRPC.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	const unimplemented, invalidArgument = "12", "3"
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	fail := func(status, message string) {
		w.Header().Set("Grpc-Status", status)
		w.Header().Set("Grpc-Message", message)
	}
	if request.URL.Path != exportPath {
		fail(unimplemented, request.URL.Path)
		return
	}
	body, err := io.ReadAll(request.Body)
	if err == nil {
		err = r.receive(body)
	}
	if err != nil {
		fail(invalidArgument, err.Error())
		return
	}
	_, _ = w.Write(make([]byte, 5)) // An empty message.
	fail("0", "")
}

// receive reads the one message of the body: its first byte says whether it is compressed,
// the next four are its length.
func (r *Receiver) receive(body []byte) error {
	if len(body) < 5 || body[0] != 0 || uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-5) {
		return errors.New("the body must be one message that is not compressed")
	}
	request, err := decode(body[5:])
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return request.each(1, func(resourceSpans message) error {
		err := resourceSpans.each(1, func(resource message) error {
			attributes, err := resource.attributes(1)
			if name := attributes["service.name"]; name != "" {
				r.services = append(r.services, name)
			}
			return err
		})
		return errors.Join(err, resourceSpans.each(2, func(scope message) error {
			return scope.each(2, func(m message) error {
				s, err := span(m)
				r.spans = append(r.spans, s)
				return err
			})
		}))
	})
}

func span(m message) (*Span, error) {
	const server, failed = 2, 2
	at := func(number int) time.Time { return time.Unix(0, int64(m.number(number))) } //nolint:gosec // It fits until the year 2262.
	s := &Span{
		TraceID: hex.EncodeToString(m.bytes(1)), ID: hex.EncodeToString(m.bytes(2)), ParentID: hex.EncodeToString(m.bytes(4)),
		Name: string(m.bytes(5)), Server: m.number(6) == server, Start: at(7), End: at(8),
	}
	var err error
	s.Attributes, err = m.attributes(9)
	return s, errors.Join(err, m.each(15, func(status message) error {
		s.Failed = status.number(3) == failed
		return nil
	}))
}

// Services returns who sent spans; the caller owns the slice.
func (r *Receiver) Services() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Compact(slices.Clone(r.services))
}

// Spans returns those that were received so far, with this value of this attribute;
// an empty key stands for all.
func (r *Receiver) Spans(key, value string) []*Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []*Span
	for _, s := range r.spans {
		if key == "" || s.Attributes[key] == value {
			found = append(found, s)
		}
	}
	return found
}

// field is one of a message: a number, or the content of a text or an inner message.
type field struct {
	id     int
	number uint64
	bytes  []byte
}

// message are the fields of a message in the protocol buffer wire format.
type message []field

// decode returns the fields of a message.
func decode(in []byte) (message, error) {
	const (
		varint  = 0
		fixed64 = 1
		lengths = 2
		fixed32 = 5
	)
	var m message
	for len(in) > 0 {
		tag, n := binary.Uvarint(in)
		if n <= 0 {
			return nil, io.ErrUnexpectedEOF
		}
		in = in[n:]
		f := field{id: int(tag >> 3)} //nolint:gosec // A field's number has 29 bits.
		switch tag & 7 {
		case varint:
			if f.number, n = binary.Uvarint(in); n <= 0 {
				return nil, io.ErrUnexpectedEOF
			}
			in = in[n:]
		case lengths:
			length, n := binary.Uvarint(in)
			if n <= 0 || length > uint64(len(in)-n) {
				return nil, io.ErrUnexpectedEOF
			}
			f.bytes, in = in[n:n+int(length)], in[n+int(length):] //nolint:gosec // It is at most the length of a slice.
		case fixed64, fixed32:
			size := 8
			if tag&7 == fixed32 {
				size = 4
			}
			if len(in) < size {
				return nil, io.ErrUnexpectedEOF
			}
			f.number = binary.LittleEndian.Uint64(append(slices.Clone(in[:size]), make([]byte, 8-size)...))
			in = in[size:]
		default:
			return nil, fmt.Errorf("field %d has the unknown wire type %d", f.id, tag&7)
		}
		m = append(m, f)
	}
	return m, nil
}

// each calls do with the inner messages of the field.
func (m message) each(id int, do func(message) error) error {
	for _, f := range m {
		if f.id != id {
			continue
		}
		inner, err := decode(f.bytes)
		if err == nil {
			err = do(inner)
		}
		if err != nil {
			return fmt.Errorf("field %d: %w", id, err)
		}
	}
	return nil
}

// last returns the field; the zero value if the message has none.
func (m message) last(id int) field {
	var found field
	for _, f := range m {
		if f.id == id {
			found = f
		}
	}
	return found
}

func (m message) bytes(id int) []byte  { return m.last(id).bytes }
func (m message) number(id int) uint64 { return m.last(id).number }

// attributes returns the texts of a field of key-value pairs.
func (m message) attributes(id int) (map[string]string, error) {
	found := map[string]string{}
	err := m.each(id, func(pair message) error {
		return pair.each(2, func(value message) error {
			found[string(pair.bytes(1))] = string(value.bytes(1))
			return nil
		})
	})
	return found, err
}
