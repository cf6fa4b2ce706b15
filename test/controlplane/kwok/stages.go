// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package kwok

import (
	"fmt"

	"sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/apis/v1alpha1"
	"sigs.k8s.io/yaml"
)

// podStages returns kwok's default stages of pods.
func podStages() ([]*internalversion.Stage, error) {
	var stages []*internalversion.Stage
	for _, text := range []string{fast.DefaultPodReady, fast.DefaultPodComplete, fast.DefaultPodDelete} {
		var stage v1alpha1.Stage
		if err := yaml.UnmarshalStrict([]byte(text), &stage); err != nil {
			return nil, fmt.Errorf("read a stage of kwok: %w", err)
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
