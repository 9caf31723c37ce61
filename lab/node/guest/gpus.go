package main

import (
	"context"
	"log"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	socket   = "coda-test-gpus.sock"
	look     = time.Second // nothing tells that the kubelet was restarted: its socket is looked at
)

// plugin offers GPUs that are names only.
type plugin struct {
	api.UnimplementedDevicePluginServer
	ids           []string
	unhealthyFile string // ids that are unhealthy now, one a line; absent: none
}

// offerGPUs registers with every kubelet that comes, until it is killed.
func offerGPUs(unhealthyFile string, ids []string) error {
	offered := &plugin{ids: ids, unhealthyFile: unhealthyFile}
	var last syscall.Stat_t
	var server *grpc.Server
	for ; ; time.Sleep(look) {
		var now syscall.Stat_t
		if syscall.Stat(api.KubeletSocket, &now) != nil {
			continue // no kubelet yet
		}
		_, gone := os.Stat(api.DevicePluginPath + socket) // a kubelet that starts empties the folder
		if server != nil && gone == nil && now.Ino == last.Ino && now.Ctim == last.Ctim {
			continue
		}
		if server != nil {
			server.Stop()
		}
		var err error
		if server, err = listen(offered); err != nil {
			return err
		}
		if err := register(); err != nil {
			log.Printf("registering failed, will try again: %v", err)
			server.Stop()
			server = nil
			continue
		}
		last = now
		log.Printf("offering %d of %s", len(ids), resource)
	}
}

func listen(offered *plugin) (*grpc.Server, error) {
	path := api.DevicePluginPath + socket
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, offered)
	go server.Serve(listener)
	return server, nil
}

func register() error {
	connection, err := dial(api.KubeletSocket)
	if err != nil {
		return err
	}
	defer connection.Close()
	patience, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(patience, &api.RegisterRequest{
		Version: api.Version, Endpoint: socket, ResourceName: resource,
	})
	return err
}

func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func (offered *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (offered *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	said := "nothing yet"
	for {
		unhealthy := offered.unhealthy()
		if unhealthy != said {
			if err := stream.Send(offered.devices(unhealthy)); err != nil {
				return err
			}
			said = unhealthy
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(look):
		}
	}
}

func (offered *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return answer, nil
}

func (offered *plugin) unhealthy() string {
	text, err := os.ReadFile(offered.unhealthyFile)
	if err != nil {
		return ""
	}
	return string(text)
}

func (offered *plugin) devices(unhealthy string) *api.ListAndWatchResponse {
	list := &api.ListAndWatchResponse{}
	for _, id := range offered.ids {
		health := api.Healthy
		for _, line := range strings.Fields(unhealthy) {
			if line == id {
				health = api.Unhealthy
			}
		}
		list.Devices = append(list.Devices, &api.Device{ID: id, Health: health})
	}
	return list
}
