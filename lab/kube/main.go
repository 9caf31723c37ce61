// Command kube is a whole Kubernetes control plane in one program: the first
// argument names the part to run, the rest are that part's own flags.
//
// It exists because k8s.io/kubernetes cannot be installed by version (`go install`
// refuses modules with replaces), and because one binary links in a quarter of the
// time and half the space of five.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Every part but etcd, which has no cobra command of its own.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	if len(os.Args) < 2 {
		fail("which part? one of: " + strings.Join(parts(), ", "))
	}
	part := os.Args[1]
	os.Args = os.Args[1:]
	if part == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, known := commands[part]
	if !known {
		fail("unknown part " + part + "; one of: " + strings.Join(parts(), ", "))
	}
	os.Exit(cli.Run(command()))
}

func parts() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}
}

func fail(sentence string) {
	fmt.Fprintln(os.Stderr, "kube: "+sentence)
	os.Exit(2)
}
