// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/term"

	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// refreshInterval is the time between two tables. Replicas report every ten seconds.
const refreshInterval = 2 * time.Second

func newTopCommand() *cobra.Command {
	o := newStatusOptions()
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what binds wait for, the longest waits first",
		Long: `Show what binds wait for: the number of binds that wait for the same reason, and the
one that has waited longest. On a terminal, the table is refreshed until Ctrl-C.

'kubectl prebind status' lists every bind.`,
		Example: `  kubectl prebind top
  kubectl prebind top -n shop --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.top(cmd.Context(), cmd.OutOrStdout(), once)
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&once, "once", false, "Print once.")
	return cmd
}

// top prints the waits once or, on a terminal, until the context ends: each table replaces the last one.
func (o *statusOptions) top(ctx context.Context, out io.Writer, once bool) error {
	client, err := o.client.Connect()
	if err != nil {
		return err
	}
	if _, _, notTerminal := term.TerminalSize(out); notTerminal != nil {
		once = true
	}
	before, shown := "", false
	if !once {
		before = "\033[H\033[2J" // The first sequence moves the cursor home, the second clears the screen.
	}
	err = wait.PollUntilContextCancel(ctx, refreshInterval, true, func(ctx context.Context) (bool, error) {
		all, err := o.read(ctx, client)
		if err != nil && !shown || ctx.Err() != nil {
			return false, err
		}
		table := bytes.NewBufferString(before)
		if shown = true; err != nil {
			fmt.Fprintln(table, "error:", err)
		} else {
			textWaits(table, all, o.clock.Now())
		}
		_, err = out.Write(table.Bytes())
		return once, err
	})
	if !once && ctx.Err() != nil {
		err = nil // The user has interrupted the command.
	}
	return err
}

// reason is a cause that binds wait for, and the binds that wait for it, the oldest first.
type reason struct {
	plugin, text string
	binds        []bind
}

// reasonsOf returns the reasons of the binds that wait, that with the oldest bind first. The names of objects do not
// distinguish reasons, apart from those of BindPolicies.
func reasonsOf(all []replica.Status) []*reason {
	byText := map[string]*reason{}
	var reasons []*reason
	for _, f := range once(bindsOf(all)) {
		if f.WaitsFor == "" {
			continue
		}
		text := f.WaitsFor
		if object, rest, ok := strings.Cut(text, ": "); ok {
			if kind, _, _ := strings.Cut(object, " "); kind != v1alpha1.Kind.Kind {
				text = kind + ": " + rest
			}
		}
		r := byText[f.Plugin+"\n"+text]
		if r == nil {
			r = &reason{plugin: f.Plugin, text: text}
			byText[f.Plugin+"\n"+text] = r
			reasons = append(reasons, r)
		}
		r.binds = append(r.binds, f)
	}
	return reasons
}

// once returns each bind once, with its oldest time and the reason of the replica that it reached last. For a minute, the others still show
// it. The binds are those of all replicas, the oldest first.
func once(binds []bind) []bind {
	var all []bind
	seen := map[[4]string]int{}
	for _, f := range binds {
		key := [...]string{f.Namespace, f.Pod, string(f.UID), f.Node}
		if i, ok := seen[key]; ok {
			f.Since = all[i].Since
			all[i] = f
			continue
		}
		seen[key] = len(all)
		all = append(all, f)
	}
	return all
}

// textWaits writes the table. It leaves out replicas that have stopped: other replicas continue their binds.
func textWaits(out *bytes.Buffer, all []replica.Status, now time.Time) {
	known := len(all)
	all = slices.DeleteFunc(all, func(s replica.Status) bool { return now.Sub(s.Reported.Time) > silentAfter })
	if known > 0 && len(all) == 0 {
		fmt.Fprintf(out, "No replica has reported for %s, by the clock of this computer: run 'kubectl prebind status'.\n", silentAfter)
		return
	}
	reasons := reasonsOf(all)
	binds, holds := 0, 0
	for _, s := range all {
		holds += s.Holds
	}
	for _, r := range reasons {
		binds += len(r.binds)
	}
	fmt.Fprintf(out, "%s  %d binds wait, %d calls are held, %d replicas\n\n", now.Format(time.TimeOnly), binds, holds, len(all))
	if binds > 0 {
		writeTable(out, "BINDS\tOLDEST\tTIMEOUT\tPOD\tNODE\tPLUGIN\tWAITING FOR", func(w io.Writer) {
			for _, r := range reasons {
				oldest := r.binds[0]
				fmt.Fprintf(w, "%d\t%s\t%s\t%s/%s\t%s\t%s\t%s\n", len(r.binds), age(now, oldest.Since.Time), budget(oldest.Budget.Duration), oldest.Namespace, oldest.Pod,
					oldest.Node, orDash(r.plugin), r.text)
			}
		})
	}
	textLeftOut(out, all)
}
