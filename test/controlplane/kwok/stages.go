// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package kwok

import (
	"fmt"
	"time"

	"sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/apis/v1alpha1"
	"sigs.k8s.io/yaml"
)

// delayAnnotation of a pod is the time until it is Running and Ready, such as 3s. The name is that of kwok's stages with
// delays. test/cluster exports it.
const delayAnnotation = "pod-ready.stage.kwok.x-k8s.io/delay"

// podStages returns kwok's default stages of pods. A pod stays Pending for the delay.
func podStages(delay time.Duration) ([]*internalversion.Stage, error) {
	var stages []*internalversion.Stage
	for _, text := range []string{fast.DefaultPodReady, fast.DefaultPodComplete, fast.DefaultPodDelete} {
		var stage v1alpha1.Stage
		if err := yaml.UnmarshalStrict([]byte(text), &stage); err != nil {
			return nil, fmt.Errorf("read a stage of kwok: %w", err)
		}
		if text == fast.DefaultPodReady {
			stage.Spec.Delay = &v1alpha1.StageDelay{
				DurationMilliseconds: new(delay.Milliseconds()),
				DurationFrom:         &v1alpha1.ExpressionFrom{JQ: &v1alpha1.ExpressionJQ{Expression: fmt.Sprintf(".metadata.annotations[%q]", delayAnnotation)}},
			}
		}
		internal, err := internalversion.ConvertToInternalStage(&stage)
		if err != nil {
			return nil, fmt.Errorf("convert stage %s of kwok: %w", stage.Name, err)
		}
		stages = append(stages, internal)
	}
	return stages, nil
}

// localStages returns the stages by kind. kwok follows the nodes, but without a stage it does not change them: tests
// decide about the conditions of nodes.
func localStages(pods []*internalversion.Stage) map[internalversion.StageResourceRef][]*internalversion.Stage {
	return map[internalversion.StageResourceRef][]*internalversion.Stage{
		{APIGroup: "v1", Kind: "Pod"}:  pods,
		{APIGroup: "v1", Kind: "Node"}: {},
	}
}
