package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// printPodResources prints, as JSON, which pod holds which devices, as the kubelet tells it.
func printPodResources(socket string) error {
	connection, err := dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	patience, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	list, err := api.NewPodResourcesListerClient(connection).List(patience, &api.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	fmt.Println(protojson.Format(list))
	return nil
}
