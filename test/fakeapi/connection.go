// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/jsonpatch"
)

// Call is one request of a Connection.
type Call struct {
	// Verb is get, list, create, update, delete, patch, or one of the last two or apply
	// followed by " status".
	Verb string
	// Kind is that of the object or of the list.
	Kind string
	// Key is empty for a list.
	Key client.ObjectKey
	// Patch is the content of a patch.
	Patch string
	// DryRun is whether a patch is not stored.
	DryRun bool
	// List are the options of a list.
	List *client.ListOptions
}

// String implements fmt.Stringer.
func (c Call) String() string { return c.Verb + " " + c.Kind + " " + c.Key.Name }

// Connection is how one client reaches the server. Set its fields before it is used by
// several goroutines. Its methods are those of client.Reader, client.Writer and
// client.StatusClient, but DeleteAllOf and Apply of other fields than the status.
type Connection struct {
	client.Writer // Nil: a method that is missing here panics.
	server        *Server
	// Before is asked first; an error is the answer, and nothing is done.
	Before func(Call) error
	// After is called when a call has succeeded; an error replaces the response.
	After func(Call) error
	// Step, if it is set, does what is asked for, or not, or later.
	Step func(ctx context.Context, call Call, do func() error) error
}

// Connect returns a new connection.
func (s *Server) Connect() *Connection { return &Connection{server: s} }

func (c *Connection) do(ctx context.Context, call Call, do func() error) error {
	now := func() error {
		if c.Before != nil {
			if err := c.Before(call); err != nil {
				return err
			}
		}
		if err := do(); err != nil {
			return err
		}
		if c.After != nil {
			return c.After(call)
		}
		return nil
	}
	if c.Step != nil {
		return c.Step(ctx, call, now)
	}
	return now()
}

// decode copies what f makes of a copy of the object into it when f has succeeded. The response to a request that was given up can be made
// later, and the caller may read the object then.
func decode[T runtime.Object](into T, f func(T) error) error {
	answer, _ := into.DeepCopyObject().(T)
	if err := f(answer); err != nil {
		return err
	}
	return assign(answer, into)
}

// write carries out a call that may change the object, and returns it as it is then.
func (c *Connection) write(ctx context.Context, call Call, change func(was client.Object) (client.Object, error)) error {
	return c.do(ctx, call, func() error {
		s := c.server
		s.mu.Lock()
		version, was := s.version, s.objects[call.Kind][call.Key]
		now, err := change(was)
		changed := s.version != version
		if changed {
			s.writes = append(s.writes, call)
		}
		s.mu.Unlock()
		if changed && now != nil {
			s.notify(now, false)
		} else if changed {
			s.notify(was, true)
		}
		return err
	})
}

// Get implements client.Reader.
func (c *Connection) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	return decode(into, func(into client.Object) error {
		return c.do(ctx, Call{Verb: "get", Kind: Kind(into), Key: key}, func() error {
			c.server.count()
			return c.server.get(key, into)
		})
	})
}

// List implements client.Reader.
func (c *Connection) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	return decode(into, func(into client.ObjectList) error {
		return c.do(ctx, Call{Verb: "list", Kind: Kind(into), List: o}, func() error {
			c.server.count()
			return c.server.list(into, o)
		})
	})
}

// Create implements client.Writer.
func (c *Connection) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	key := client.ObjectKeyFromObject(o)
	return decode(o, func(o client.Object) error {
		return c.write(ctx, Call{Verb: "create", Kind: Kind(o), Key: key}, func(was client.Object) (client.Object, error) {
			if was != nil {
				return nil, AlreadyExists(Kind(o), key.Name)
			}
			if err := checkSize(o); err != nil {
				return nil, err
			}
			if o.GetUID() == "" {
				o.SetUID(types.UID(fmt.Sprintf("uid-%d", c.server.version)))
			}
			c.server.stamp(o)
			c.server.store(plain(copyOf(o)))
			return o, nil
		})
	})
}

// Update implements client.Writer.
func (c *Connection) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	manager := (&client.UpdateOptions{}).ApplyOptions(options).FieldManager
	return c.update(ctx, "update", o, manager)
}

func (c *Connection) update(ctx context.Context, verb string, o client.Object, manager string) error {
	call := Call{Verb: verb, Kind: Kind(o), Key: client.ObjectKeyFromObject(o)}
	return decode(o, func(o client.Object) error {
		return c.write(ctx, call, func(was client.Object) (client.Object, error) {
			if was == nil {
				return nil, NotFound(call.Kind, call.Key.Name)
			}
			if uid := o.GetUID(); uid != "" && uid != was.GetUID() {
				return nil, Conflict(call.Kind, call.Key.Name)
			}
			return c.replace(call, was, copyOf(o), manager, o)
		})
	})
}

// Patch implements client.Writer.
func (c *Connection) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption) error {
	return c.patch(ctx, "patch", o, p, (&client.PatchOptions{}).ApplyOptions(options))
}

func (c *Connection) patch(ctx context.Context, verb string, o client.Object, p client.Patch, options *client.PatchOptions) error {
	content, err := p.Data(o)
	if err != nil {
		return err
	}
	call := Call{Verb: verb, Kind: Kind(o), Key: client.ObjectKeyFromObject(o), Patch: string(content), DryRun: len(options.DryRun) > 0}
	return decode(o, func(o client.Object) error {
		return c.write(ctx, call, func(was client.Object) (client.Object, error) {
			if was == nil {
				return nil, NotFound(call.Kind, call.Key.Name)
			}
			now, err := jsonpatch.To(was, p.Type(), content)
			if err != nil && p.Type() == types.JSONPatchType {
				return nil, Invalid("%v", err)
			}
			if err != nil {
				return nil, err
			}
			if now.GetUID() != was.GetUID() {
				return nil, Invalid("metadata.uid: Invalid value: %q: field is immutable", now.GetUID())
			}
			return c.replace(call, was, now, options.FieldManager, o)
		})
	})
}

// replace stores the object, if it may be, and copies what is stored then into the
// client's. It must be called with the server's mu held.
func (c *Connection) replace(call Call, was, now client.Object, manager string, into client.Object) (client.Object, error) {
	s := c.server
	if version := now.GetResourceVersion(); version != "" && version != was.GetResourceVersion() {
		return nil, Conflict(call.Kind, call.Key.Name)
	}
	plain(now)
	now.SetUID(was.GetUID())
	now.SetResourceVersion(was.GetResourceVersion())
	if err := checkClaim(was, now, call.Verb == "update status" || call.Verb == "patch status", manager); err != nil {
		return nil, err
	}
	if err := checkSize(now); err != nil {
		return nil, err
	}
	noteNominated(call, was, now, manager)
	if call.DryRun || equality.Semantic.DeepEqual(was, now) {
		return was, assign(now, into) // Nothing changes, not even the version.
	}
	s.stamp(now)
	s.store(now)
	err := assign(now, into)
	if now.GetDeletionTimestamp() != nil && len(now.GetFinalizers()) == 0 {
		s.drop(call)
		return nil, err
	}
	return now, err
}

// drop removes the object. It must be called with mu held.
func (s *Server) drop(call Call) {
	delete(s.objects[call.Kind], call.Key)
	s.version++
}

// Delete implements client.Writer.
func (c *Connection) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	only := (&client.DeleteOptions{}).ApplyOptions(options).Preconditions
	call := Call{Verb: "delete", Kind: Kind(o), Key: client.ObjectKeyFromObject(o)}
	return c.write(ctx, call, func(was client.Object) (client.Object, error) {
		if was == nil {
			return nil, NotFound(call.Kind, call.Key.Name)
		}
		if only != nil && (only.UID != nil && *only.UID != was.GetUID() || only.ResourceVersion != nil && *only.ResourceVersion != was.GetResourceVersion()) {
			return nil, Conflict(call.Kind, call.Key.Name)
		}
		if len(was.GetFinalizers()) == 0 {
			c.server.drop(call)
			return nil, nil
		}
		if was.GetDeletionTimestamp() != nil {
			return was, nil
		}
		now := copyOf(was)
		now.SetDeletionTimestamp(new(metav1.Now()))
		c.server.stamp(now)
		c.server.store(now)
		return now, nil
	})
}

// Status implements client.StatusClient.
func (c *Connection) Status() client.SubResourceWriter { return status{c: c} }

type status struct {
	client.SubResourceWriter // Nil: a status is not created.
	c                        *Connection
}

// Update implements client.SubResourceWriter.
func (s status) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	manager := (&client.SubResourceUpdateOptions{}).ApplyOptions(options).FieldManager
	return s.c.update(ctx, "update status", o, manager)
}

// Patch implements client.SubResourceWriter.
func (s status) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
	return s.c.patch(ctx, "patch status", o, p, &(&client.SubResourcePatchOptions{}).ApplyOptions(options).PatchOptions)
}

// Apply implements client.SubResourceWriter, by force. It merges the configuration into a pod, and keeps and removes the field
// nominatedNodeName by its managers; see noteNominated.
func (s status) Apply(ctx context.Context, o runtime.ApplyConfiguration, options ...client.SubResourceApplyOption) error {
	content, err := json.Marshal(o)
	if err != nil {
		return err
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(content, pod); err != nil {
		return err
	}
	as := &client.PatchOptions{FieldManager: (&client.SubResourceApplyOptions{}).ApplyOpts(options).FieldManager}
	return s.c.patch(ctx, "apply status", pod, client.RawPatch(types.MergePatchType, content), as)
}
