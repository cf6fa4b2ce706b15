// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Program mutants shows that the simulation finds faults: it breaks the product in one way at a time, with a build overlay, and runs the
// seeds. It fails if the simulation does not find one of them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is a fault: a text of a file that occurs once, and what replaces it.
type mutant struct{ name, file, text, by string }

var mutants = []mutant{
	{"a device has two owners", "binder/plugins/device/reads.go", "free < c.asked {", "free < 0 {"},
	{"a pending pod loses its device", "binder/plugins/device/reads.go", "at != podstate.Pending && at != podstate.BoundHere", "at != podstate.BoundHere"},
	{"a running pod loses its device", "binder/plugins/device/reads.go", "at != podstate.Pending && at != podstate.BoundHere", "at != podstate.Pending"},
	{"nothing is rolled back", "internal/work/plugins.go", "return p.PreBindRollBack(ctx, m) })", "return nil })"},
	{"nothing is confirmed", "internal/work/plugins.go", "return p.PostBind(ctx, m, bound) })", "return nil })"},
	{"a lost lease does not matter", "internal/work/work.go", "case !held || term != e.term:", "case false && (!held || term != e.term):"},
	{"an entry being rolled back is used", "internal/work/work.go", "case e.cause != nil || e.closed:", "case false:"},
	{"an ended call is allowed", "binder/call.go", "if ctx.Err() != nil { // The only check, after all that could allow the bind.", "if false {"},
	{"a wait is ready", "binder/decide.go", "if r.err == nil && v.Wait != (framework.Wait{}) {", "if false {"},
	{"writes are not conditional", "internal/ledger/ledger.go", "err = s.h.Writer.Update(ctx, object)", "object.ResourceVersion = \"\"\n\t\terr = s.h.Writer.Update(ctx, object)"},
	{"marks of living replicas are swept", "internal/work/sweep.go", "inProgress := living == nil || living[replica]", "inProgress := living == nil"},
	{"marks are not swept", "internal/work/sweep.go", "marks, err = p.Marks(ctx)", "_, err = p.Marks(ctx)"},
	{"a rollback does not look at the pod", "internal/podstate/podstate.go", "case pod.Spec.NodeName == node && node != \"\":", "case false:"},
	{"the exclusive claim is not reserved", "binder/plugins/volumebinding/plugin.go", "err := p.reserve(ctx, bc, pl.exclusive)", "err := error(nil)"},
	{"users of the exclusive claim are not listed", "binder/plugins/volumebinding/exclusive.go", "return p.checkUnused(ctx, bc.Pod, claims)", "return nil"},
	{"a free volume is read without its selection", "binder/plugins/volumebinding/plugin.go", `"", m.volume.Name, volumes.Volumes)`, `"", m.volume.Name)`},
	{"an unbound claim is ready", "binder/plugins/volumebinding/plugin.go", "return v, nil\n}\n\n// PreBind", "v.Wait = framework.Wait{}\n\treturn v, nil\n}\n\n// PreBind"},
	{"an allowed bind is over at once", "binder/framework/settles.go", "const BindSettles = 50 * time.Second", "const BindSettles = 50 * time.Millisecond"},
	{"an abandoned entry stays", "internal/work/work.go", "const AbandonAfter = time.Minute", "const AbandonAfter = 1000 * time.Hour"},
	{"the write of the cache is not awaited", "binder/decide.go", "case len(v.Writes) > 0 && asked[name]:", "case false:"},
	{"pods that start are not counted", "binder/plugins/startlimit/slots.go", "all.observed++", "all.observed = 0"},
	{"a slot is not reserved until the pod is seen", "binder/plugins/startlimit/plugin.go", "const observeTime = framework.BindSettles", "const observeTime = framework.BindSettles / 50"},
	{"a bind needs no write", "binder/decide.go", "case len(v.Writes) > 0:\n\t\t\twrites = append(writes, i)", "case len(v.Writes) > 0:"},
	{"a suspension does not end the term", "internal/replica/replica.go", "return max(r.o.Clock.Since(r.renewed), wall)", "return min(r.o.Clock.Since(r.renewed), wall)"},
	{"an earlier node's CSINode counts", "binder/plugins/nodeready/csi.go", "return o.Kind == \"Node\" && o.UID != node.UID", "return false && o.UID != node.UID"},
	{"an entry stays in a map", "internal/work/work.go", "delete(s.entries, e.key)", "_ = e"},
	{"an announcement stays", "binder/plugins/announce/plugin.go", "return p.h.Status.Status().Patch(ctx, pod, patch", "return nil; return p.h.Status.Status().Patch(ctx, pod, patch"},
	{"a foreign nominated node is replaced", "binder/plugins/announce/decide.go", "return len(attempts) > 0 && !foreign", "return len(attempts) > 0 || foreign"},
	{"an old policy stays", "binder/plugins/policy/policies.go", "if old != nil && old.isFor(&list.Items[i]) {", "if old != nil {"},
	{"a policy sees another user", "binder/plugins/policy/plugin.go", "User: bc.User, DryRun", "DryRun"},
	{"a policy rejects nothing", "binder/plugins/policy/judge.go", "return v, refusalOf(rejecting)", "return v, nil"},
	{"a policy delays nothing", "binder/plugins/policy/judge.go", "v.Wait = waitOf(waiting)", "_ = waitOf(waiting)"},
	{"tasks are not awaited", "internal/tasks/tasks.go", "if waiting++; r.Verdict == policy.Allowed {", "if waiting++; false {"},
	{"a failed task is ready", "internal/tasks/tasks.go", "case mine && a.Found.IsTrue(v1alpha1.TaskFailed):", "case mine && a.Found.IsTrue(v1alpha1.TaskFailed):\n\t\treturn state{verdict: policy.Allowed}\n\tcase false:"},
	{"an edited policy keeps its earlier tasks", "internal/tasks/tasks.go", "t.Handler, string(t.Retain), ", ""},
	{"a rollback deletes no task", "internal/tasks/store.go", "others))\n\t\t\t}\n\t\t\treturn s.remove(ctx, t)", "others))\n\t\t\t}\n\t\t\treturn nil"},
	{"the task of a running pod ends with the bind", "internal/tasks/store.go", "if t.Spec.Retain == v1alpha1.RetainUntilBound {", "if t.Spec.Retain != \"\" {"},
	{"the task of a bound pod is not confirmed", "internal/tasks/store.go", "return client.IgnoreNotFound(s.setAttempts(ctx, t, nil))", "return nil"},
	{"the task of a running pod is tidied", "internal/tasks/store.go", "if !running.Has(t.Spec.Pod.UID) {", "if !running.Has(\"\") {"},
	{"a reservation of a ResourceClaim stays", "binder/plugins/resourceclaims/release.go", "unused := at == podstate.Pending &&", "unused := false && at == podstate.Pending &&"},
	{"the affinity of a volume does not matter", "binder/plugins/volumebinding/claims.go", "if err := volume.CheckNodeAffinity(here, s.node.Labels); err != nil {", "if err := volume.CheckNodeAffinity(here, s.node.Labels); false && err != nil {"},
}

var failed = regexp.MustCompile(`(?m)^    --- FAIL: TestSimulation/`)

func main() {
	seeds := flag.Int("seeds", 50, "Number of seeds for each mutant.")
	only := flag.String("only", "", "Run only mutants whose name contains the text.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *seeds, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, seeds int, only string) error {
	folder, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	var problems []error
	for _, m := range mutants {
		if !strings.Contains(m.name, only) {
			continue
		}
		tried := seeds
		found, err := m.test(ctx, folder, tried)
		if err == nil && found == 0 { // One in 20 seeds finds the rarest.
			tried *= 4
			found, err = m.test(ctx, folder, tried)
		}
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: %w", m.name, err))
		case found == 0:
			problems = append(problems, fmt.Errorf("%s: not found in %d seeds", m.name, tried))
		}
		if err != nil {
			fmt.Printf("cannot run: %s\n", m.name)
			continue
		}
		fmt.Printf("%3d of %d seeds find: %s\n", found, tried, m.name)
	}
	return errors.Join(problems...)
}

// changed returns the source with the mutant.
func (m mutant) changed() (string, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(source), m.text); n != 1 {
		return "", fmt.Errorf("%s contains %q %d times, want 1", m.file, m.text, n)
	}
	return strings.Replace(string(source), m.text, m.by, 1), nil
}

// test returns the number of seeds that find the mutant.
func (m mutant) test(ctx context.Context, folder string, seeds int) (int, error) {
	source, err := m.changed()
	if err != nil {
		return 0, err
	}
	broken := filepath.Join(folder, filepath.Base(m.file))
	if err := os.WriteFile(broken, []byte(source), 0o600); err != nil {
		return 0, err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return 0, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: broken}})
	if err != nil {
		return 0, err
	}
	file := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return 0, err
	}
	command := exec.CommandContext(ctx, "go", "test", "-overlay="+file, "./test/simulation", "-run=^TestSimulation$", fmt.Sprintf("-seeds=%d", seeds), "-timeout=20m")
	out, err := command.CombinedOutput()
	found := len(failed.FindAll(out, -1))
	if found == 0 && err != nil {
		return 0, fmt.Errorf("%w: %s", err, out[max(0, len(out)-2000):])
	}
	return found, nil
}
