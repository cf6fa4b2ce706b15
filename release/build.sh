#!/usr/bin/env bash
# Copyright The Prebind Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds the files of a release in the directory RELEASE: make release VERSION=v1.2.3
# Equal commits give equal bytes. Needs GNU tar, gzip, sed, xargs, date and realpath.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022

die() { echo "error: $*" >&2; exit 1; }
tool() { go tool -modfile=tools.mod "$@"; }
sum() { sha256sum "$1" | cut -d ' ' -f 1; }

# fill FILE: prints a template as JSON. Its variables are those of the environment.
fill() { tool yq -o=json '(.. | select(tag == "!!str")) |= envsubst(nu)' "$1"; }

# pack DIRECTORY FILE...: writes a tar archive that depends only on the names, the contents and which files are programs.
pack() {
	from=$1 && shift
	tar --create --format=ustar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		--directory="$from" "$@"
}

# Help texts link to the documentation of such versions (cmd/internal/cli).
echo "$VERSION" | grep -Eqx 'v[0-9]+\.[0-9]+\.[0-9]+(-[a-z]+\.[0-9]+)?' ||
	die "version \"$VERSION\": must look like v1.2.3 or v1.2.3-rc.1: run make with VERSION=v1.2.3"
[[ -z $(git status --porcelain) ]] || die "the working tree has changes: commit or stash them"
commit=$(git rev-parse HEAD)
tagged=$(git rev-parse --verify --quiet "refs/tags/$VERSION^{commit}" || echo "$commit")
test "$tagged" = "$commit" || die "the tag $VERSION is commit $tagged, not HEAD ($commit): check out the tag, or choose another version"
number=${VERSION#v}
project=https://github.com/prebind/prebind
documentation=$project/blob/$VERSION
# The time of all files.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
created=$(date --utc --date="@$epoch" +%Y-%m-%dT%H:%M:%SZ)
export VERSION commit created

rm -rf "$RELEASE" "$STAGE"
mkdir -p "$RELEASE" "$STAGE/packaged"
out=$(realpath "$RELEASE")
stage=$(realpath "$STAGE")

# The section of the changelog. GitHub shows a line break as <br>, so that each entry becomes one line.
awk -v heading="## $number - " 'index($0, heading) == 1 { found = 1; next } /^## / { found = 0 } found' CHANGELOG.md |
	sed -zE -e 's/^\n+//' -e 's/(\S)\n *([^[:space:]#|-]|-\S)/\1 \2/g' \
		-e "s,\]\(([[:alnum:]_./-]+(#[[:alnum:]_-]+)?)\),]($documentation/\1),g" >"$out/release-notes.md"
grep -q '^- ' "$out/release-notes.md" ||
	die "CHANGELOG.md: no section \"## $number - YYYY-MM-DD\" with entries: move those below \"## Unreleased\" to it"

# The programs, and the images for Linux.
go build -modfile=tools.mod -o "$stage/" oras.land/oras/cmd/oras
go run ./test/licenses >"$stage/THIRD_PARTY_LICENSES"
fill release/krew.yaml >"$stage/krew.json"
images=()
for platform in $PLATFORMS; do
	export os="${platform%/*}" arch="${platform#*/}"
	name=prebind-$VERSION-$os-$arch
	dir=$stage/$os-$arch
	echo "building for $platform"
	GOOS=$os GOARCH=$arch make --no-print-directory --silent build BIN="$dir"
	make --no-print-directory --silent sbom BIN="$dir"
	cp "$dir/prebind.cdx.json" "$out/$name.cdx.json"
	cp "$dir/kubectl-prebind.cdx.json" "$out/$name-kubectl.cdx.json"
	mkdir "$dir/licenses"
	cp LICENSE "$stage/THIRD_PARTY_LICENSES" "$dir/licenses/"
	pack "$dir" kubectl-prebind prebind --directory=licenses LICENSE THIRD_PARTY_LICENSES | gzip -n >"$out/$name.tar.gz"
	uri=$project/releases/download/$VERSION/$name.tar.gz sha256=$(sum "$out/$name.tar.gz") tool yq -i '.spec.platforms += {
		"selector": {"matchLabels": {"os": strenv(os), "arch": strenv(arch)}},
		"uri": strenv(uri), "sha256": strenv(sha256), "bin": "kubectl-prebind"}' "$stage/krew.json"
	test "$os" = linux || continue

	pack "$dir" prebind licenses >"$dir/layer.tar"
	layer=$(sum "$dir/layer.tar") fill release/image.yaml >"$dir/config.json"
	gzip -n "$dir/layer.tar"
	image=$(cd "$dir" && ../oras push --oci-layout ../image --annotation="org.opencontainers.image.created=$created" \
		--config=config.json:application/vnd.oci.image.config.v1+json layer.tar.gz:application/vnd.oci.image.layer.v1.tar+gzip \
		--format=go-template --template='{{.digest}}')
	images+=("$image")
	# The SBOM of the program, below a container.
	hash=${image#sha256:}
	ref="pkg:oci/prebind@sha256%3A$hash?arch=$arch&os=$os&repository_url=ghcr.io%2Fprebind%2Fprebind&tag=$VERSION" hash=$hash \
		tool yq -p=json -o=json '.metadata.component as $program
		| .metadata.component = {"bom-ref": strenv(ref), "type": "container", "name": "ghcr.io/prebind/prebind",
			"version": strenv(VERSION), "hashes": [{"alg": "SHA-256", "content": strenv(hash)}], "purl": strenv(ref)}
		| .components = [$program] + .components
		| .dependencies = [{"ref": strenv(ref), "dependsOn": [$program["bom-ref"]]}] + .dependencies' \
		"$dir/prebind.cdx.json" >"$out/prebind-$VERSION-image-$os-$arch.cdx.json"
done
tool yq -p=json -o=yaml . "$stage/krew.json" >"$out/krew.yaml"

# The image of all platforms. Its entry in the archive has the names that podman and containerd read.
tool yq -r '.config.Labels | to_entries | .[] | "--annotation=" + .key + "=" + (.value | envsubst(nu))' release/image.yaml |
	xargs -d '\n' "$stage/oras" manifest index create --oci-layout "$stage/image:$VERSION" "${images[@]}" >"$stage/index.log"
tool yq -i -p=json -o=json '.manifests |= (filter(.annotations["org.opencontainers.image.ref.name"] == strenv(VERSION))
	| .[0].annotations["io.containerd.image.name"] = "ghcr.io/prebind/prebind:" + strenv(VERSION))' "$stage/image/index.json"
pack "$stage/image" blobs index.json oci-layout >"$out/prebind-$VERSION-image.tar"
pinned=ghcr.io/prebind/prebind:$VERSION@$("$stage/oras" resolve --oci-layout "$stage/image:$VERSION")

for install in install=webhook install-self-managed=webhook/overlays/self-managed \
	first-install=first-install first-install-self-managed=first-install/self-managed; do
	file=$out/${install%%=*}.yaml
	tool kustomize build "config/${install#*=}" | sed "s,ghcr.io/prebind/prebind:latest,$pinned,; s,$project/blob/main,$documentation," >"$file"
	grep -qF "$pinned" "$file" || die "config/${install#*=}: no image to pin"
done

# The chart, from the files of the commit. Artifact Hub reads the annotations, and the templates the image. Helm packages the time,
# so that its archive is packed again.
git archive HEAD charts/prebind | tar --extract --directory="$stage"
grep -rlF "$project/blob/main" "$stage/charts" | xargs sed -i "s,$project/blob/main,$documentation,"
case $VERSION in *-*) prerelease=true ;; *) prerelease=false ;; esac
changes=$(awk -v q="'" '/^### / { kind = tolower($2) }
	/^- / { text = substr($0, 3); gsub(q, q q, text); print "- kind: " kind "\n  description: " q text q }' "$out/release-notes.md")
changes=$changes pinned=$pinned prerelease=$prerelease tool yq -i '.annotations *= {
	"artifacthub.io/changes": strenv(changes), "artifacthub.io/prerelease": strenv(prerelease),
	"artifacthub.io/images": "- name: prebind\n  image: " + strenv(pinned), "prebind.dev/image": strenv(pinned)}' "$stage/charts/prebind/Chart.yaml"
tool helm package "$stage/charts/prebind" --version="$number" --app-version="$VERSION" --destination="$stage" >"$stage/helm.log"
tar --extract --gzip --file="$stage/prebind-$number.tgz" --directory="$stage/packaged"
pack "$stage/packaged" prebind | gzip -n >"$out/prebind-$number.tgz"

printf '\n[Install Prebind %s](%s/docs/install.md)\n' "$VERSION" "$documentation" >>"$out/release-notes.md"
cd "$out"
sha256sum -- *.* | tee SHA256SUMS
