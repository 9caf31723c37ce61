#!/usr/bin/env bash
# A cluster for trying Coda in containers, from nothing (`make kind-up`): kind, the images, the chart, 32 pretended GPUs
# and demo jobs. Safe to repeat: what is there already stays or is brought up to date. DRY_RUN=1 only says what it does.
#
# It speaks to the cluster kind-coda alone, whatever your kubeconfig names.
set -euo pipefail
cd "$(dirname "$0")/../.."

CLUSTER=coda
CONTEXT="kind-$CLUSTER"
NAMESPACE=coda-system
GPUS_PER_NODE=8
TAG="$(deploy/image-tag.sh)"
WORKERS=("$CLUSTER-worker" "$CLUSTER-worker2" "$CLUSTER-worker3" "$CLUSTER-worker4") # as kind names them

say() { printf '==> %s\n' "$*" >&2; }

run() {
    if [[ "${DRY_RUN:-}" == 1 ]]; then
        printf '%s' "$1"
        shift
        ((!$#)) || printf ' %q' "$@"
        printf '\n'
    else
        "$@"
    fi
}

has_cluster() { [[ "${DRY_RUN:-}" != 1 ]] && kind get clusters 2>/dev/null | grep -qx "$CLUSTER"; }

for program in docker kind kubectl helm; do
    if [[ "${DRY_RUN:-}" != 1 ]] && ! command -v "$program" >/dev/null; then
        echo "kind-up needs $program: install it, or try \`make demo\`, which needs none of docker, kind and kubectl." >&2
        exit 1
    fi
done

say "the cluster $CLUSTER"
has_cluster || run kind create cluster --config kind-config.yaml --wait 120s

say "the images, built and loaded onto the nodes"
run make --no-print-directory images IMAGE_TAG="$TAG"
run kind load docker-image --name "$CLUSTER" "coda-operator:$TAG" "coda-extender:$TAG"

say "the pool: every worker, with $GPUS_PER_NODE GPUs that nobody has"
capacity="{\"status\":{\"capacity\":{\"nvidia.com/gpu\":\"$GPUS_PER_NODE\"},\"allocatable\":{\"nvidia.com/gpu\":\"$GPUS_PER_NODE\"}}}"
for node in "${WORKERS[@]}"; do
    run kubectl --context "$CONTEXT" taint nodes "$node" coda.scheduler/pool=true:NoSchedule --overwrite
    run kubectl --context "$CONTEXT" patch node "$node" --subresource=status --type=merge --patch "$capacity"
done

# kind makes volumes with pods that tolerate every taint; the admission policies let only the platform's do so.
run kubectl --context "$CONTEXT" label namespace local-path-storage coda.scheduler/pool=true --overwrite

say "Coda, on the control plane's node"
run helm upgrade --install coda deploy/helm/coda --kube-context "$CONTEXT" --namespace "$NAMESPACE" --create-namespace \
    --values deploy/kind/values.yaml --set-string "image.tag=$TAG" --wait --timeout 5m

say "demo jobs"
run kubectl --context "$CONTEXT" apply --filename deploy/kind/demo.yaml

say "look: kubectl --context $CONTEXT get tj,pods -n coda-demo; make kind-down removes it all"
