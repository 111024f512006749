/* The interface between the program and libsurogate_cuda.so. The plugin uses no symbol of the program and the program none of CUDA: each
 * passes the other a table of functions. Both must be built from the same sources: CUDA_ABI_VERSION and the sizes of shared structs must
 * agree. */
#pragma once

#include "device/device.h"

enum { CUDA_ABI_VERSION = 8, CUDA_LEAST_SM = 80 /* CUDA_LEAST_SM: least compute capability, times 10 */ };

/* Functions of the program that the plugin calls. */
typedef struct CudaHost {
    uint32_t abi_version;
    uint32_t args_size, node_size, api_size;         /* sizeof KernelArgs, sizeof Node, sizeof DeviceApi */
    Status (*fail)(Status status, const char *text); /* records the message, and returns `status` */
    const char *(*message)(void);
    void (*log)(const char *text); /* prints a line for the user */
} CudaHost;

/* The plugin's exported functions, by type and name. */
typedef Status (*CudaPluginCreate)(const CudaHost *host, int index, Device **out);
#define CUDA_PLUGIN_CREATE "surogate_cuda_create"
/* Writes lines for people: driver, runtime, libraries with versions and paths. out: buffer of `size` bytes. */
typedef void (*CudaPluginDescribe)(Device *device, char *out, size_t size);
#define CUDA_PLUGIN_DESCRIBE "surogate_cuda_describe"
/* Measures the GPU's links to the host and to other GPUs, and writes a line for each. Takes about a second. */
typedef Status (*CudaPluginLinks)(Device *device, char *out, size_t size);
#define CUDA_PLUGIN_LINKS "surogate_cuda_links"
