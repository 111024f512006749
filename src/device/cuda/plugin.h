/* The border between the program and libsurogate_cuda.so. The plugin needs no symbol of the program and the program
 * none of CUDA: each hands the other a table. Both are built from one tree; ABI_VERSION and the size of what they share
 * must agree. */
#pragma once

#include "device/device.h"

enum { CUDA_ABI_VERSION = 7, CUDA_LEAST_SM = 80 /* the least compute capability, times 10 */ };

/* What the plugin calls in the program. */
typedef struct CudaHost {
    uint32_t abi_version;
    uint32_t args_size, node_size, api_size;         /* sizeof KernelArgs, Node, DeviceApi */
    Status (*fail)(Status status, const char *text); /* records the message */
    const char *(*message)(void);
    void (*log)(const char *text); /* a line for the user */
} CudaHost;

/* What the plugin exports, by type and name. */
typedef Status (*CudaPluginCreate)(const CudaHost *host, int index, Device **out);
#define CUDA_PLUGIN_CREATE "surogate_cuda_create"
/* Lines for people: driver, runtime, libraries with versions and paths. Buffer of `size` bytes. */
typedef void (*CudaPluginDescribe)(Device *device, char *out, size_t size);
#define CUDA_PLUGIN_DESCRIBE "surogate_cuda_describe"
/* Measures the GPU's links to the host and to other GPUs; a line each. Takes about a second. */
typedef Status (*CudaPluginLinks)(Device *device, char *out, size_t size);
#define CUDA_PLUGIN_LINKS "surogate_cuda_links"
