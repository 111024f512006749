/* The device of tests that run on the CPU and, compiled with FAMILY_CUDA into test_cuda, on a GPU. */
#pragma once

#include "device/device.h"
#include "test.h"

#ifdef FAMILY_CUDA
#define TEXTS_DEVICE "cuda"
#else
#define TEXTS_DEVICE "cpu"
#endif

/* Skips the case if the device doesn't exist. */
#define NEED_DEVICE() \
    do { \
        Device *needed; \
        if (device_open(TEXTS_DEVICE, 0, 1, &needed) != OK) SKIP(status_message()); \
        needed->api->destroy(needed); \
    } while (0)
