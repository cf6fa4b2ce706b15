// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package handler helps to write a handler: a program that does a step before the bind of a pod. A BindPolicy names the handler in one of
// its tasks, and Prebind creates a BindTask for each bind. The bind waits until the handler reports that the task is ready.
//
//	err := handler.Run(ctx, config, handler.Handler{
//		Name: "example.com/prefetch",
//		Do:   func(ctx context.Context, task *handler.Task) (handler.Result, error) { ... },
//		Undo: func(ctx context.Context, task *handler.Task) error { ... },
//	})
//
// The package watches the BindTasks of the handler, and writes their finalizers and conditions. It writes a BindTask twice when Do is ready
// at once: the finalizer and the result.
//
// Guarantees:
//
//   - Do and Undo are called at least once, and again after a crash or a failed request, so they must be idempotent. A task that is deleted
//     before Do was called is not undone.
//   - One call at a time for each task. Calls for other tasks run at the same time, up to Handler.Workers.
//   - The finalizer is there before the first call of Do, and stays until Undo has returned nil. So Undo is called even if the handler did
//     not run when the task was deleted, and even if Do did not finish.
//   - Do is not called after it returned Ready or Failed and the result is written. It is not called after Undo.
//
// They hold for one running replica. Leader election is up to the program: call Run when the replica is elected, and exit when it is not
// the leader any more. A replica that does not notice this in time can call Do while another calls Undo. Set Task.OwnerReference on the
// objects that Do creates, so that such an object is deleted.
//
// The ServiceAccount of a handler needs the ClusterRole prebind-bindtask-handler, which comes with Prebind, and the verb handle on
// handlers.policy.prebind.dev with the name of the handler as resourceName.
//
// A handler works without this package, and in any language: the BindTask is its whole interface.
package handler
