# The front door; CMake and Ninja do the work behind it.
#
#   make quickstart    install what is needed, build, train a small model on six novels, evaluate it, generate
#   make test          install, build, run every test that needs no GPU; the last line counts them
#   make test-long     the tests of tests/long, which take minutes or hours
#   make build         leaves build/surogate
#   make train         just the native program
#   make install       program, library, header, pkg-config file, man page and completions into PREFIX (/usr/local); the library into
#                      LIBDIR (PREFIX/lib). DESTDIR: a folder before both, for packages
#   make uninstall     removes what make install put into PREFIX
#   make wheel         dist/surogate-VERSION-...whl: the Python package with program, library and, where built, CUDA plugin
#   make wheel-dev     dist/surogate-VERSION+dev-...whl: makes an environment use the package of this tree, over BUILD
#   make rebuild clean bench fuzz
#   make format        lays out the C and CUDA sources as .clang-format says
#   make test-gpu      the tests that need a GPU; leaves a stamp of what they ran on, which CI compares with the tree
#   make gpu-bundle    build/gpu-bundle: program, plugin and GPU tests for a machine with nothing installed (BUNDLE/check runs them)
#   make docs          build/site: the documents as a site with search (mkdocs of PyPI, in a folder of its own)
#   make help          this text
#   make cuda12        BUILD/libsurogate_cuda12.so: the plugin for drivers of CUDA 12, which wheel and release take along
#   make deb           dist/surogate_VERSION_amd64.deb: program, library and header as a package of Debian, without CUDA plugin
#   make release       dist/release: install.sh, archive and wheel, with the plugin for all GPUs from compute capability 8.0 on
#
# BUILD_TYPE=Debug   SAN=address,undefined or SAN=thread   CUDA=0: no CUDA plugin   CC=clang   BUILD=folder
# CMAKE_FLAGS='-DUSE_MPI=OFF': more flags for CMake; this one leaves out runs that mpirun starts (MPI is opened at run time, and no part
# of it is needed to build)
BUILD_TYPE ?= Release
SAN        ?=
CUDA       ?= 1
BUILD      ?= build
JOBS       ?= $(shell nproc)
FUZZ_SECONDS ?= 60

# CMake names the definitions in CMAKE_FLAGS that it doesn't know.
CMAKE_ARGS = -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DSAN=$(SAN) -DCUDA=$(CUDA) $(or $(CMAKE_FLAGS),--no-warn-unused-cli)

# Compiling the CUDA plugin takes minutes: the quickstart does it only if there are a GPU and nvcc.
GPU    ?= /dev/nvidiactl
PLUGIN  = $$([ -e $(GPU) ] && cmake --build $(BUILD) --target help | sed -n 's/^\(surogate_cuda\): phony$$/\1/p')

DEB_LDFLAGS = -Wl,-z,relro -Wl,-z,now -Wl,--as-needed

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib

.PHONY: docs help install uninstall deb wheel wheel-dev cuda12 build train test test-long quickstart quickstart-build rebuild clean bench fuzz deps configure format test-gpu gpu-bundle release

build: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@echo "built $(BUILD)/surogate"

train: configure
	@cmake --build $(BUILD) -j $(JOBS) --target surogate
	@echo "built $(BUILD)/surogate"

configure: deps
	@cmake -S . -B $(BUILD) $(CMAKE_ARGS) $(if $(filter command,$(origin CC) ),-DCMAKE_C_COMPILER=$(CC)) > /dev/null

deps:
	@tools/install-deps build

test: build
	@tools/run-tests $(BUILD)

install: build
	@DESTDIR="$(DESTDIR)" LIBDIR="$(LIBDIR)" tools/install "$(BUILD)" "$(PREFIX)"

uninstall:
	@DESTDIR="$(DESTDIR)" tools/uninstall "$(PREFIX)"

wheel: build
	@tools/wheel $(BUILD)

wheel-dev: build
	@tools/wheel --dev $(BUILD)

test-long: build
	@TEST_LONG=1 TEST_TIMEOUT=$${TEST_TIMEOUT:-86400} tools/run-tests $(BUILD)

quickstart:
	@tools/install-deps quickstart
	@$(MAKE) --no-print-directory quickstart-build
	@tools/quickstart $(BUILD)

quickstart-build: configure
	@cmake --build $(BUILD) -j $(JOBS) --target surogate $(PLUGIN)
	@echo "built $(BUILD)/surogate"

docs:
	@tools/site $(BUILD)

# BUILD/libsurogate_cuda12.so, from the same sources as BUILD's own plugin. cub requires the headers of its compiler's version.
CUDA12_ARCHS ?= 90a
CUDA12_PTX   ?= 80
cuda12: deps
	@nvcc=$$(tools/cuda12-toolkit $(BUILD)-cuda12/toolkit | tail -1) && \
	NVCC_APPEND_FLAGS=-DCCCL_DISABLE_CTK_COMPATIBILITY_CHECK && export NVCC_APPEND_FLAGS && \
	cmake -S . -B $(BUILD)-cuda12 $(CMAKE_ARGS) -DNVCC=$$nvcc -DCUDA_PLUGIN=surogate_cuda12 \
	    "-DCUDA_ARCHS=$(CUDA12_ARCHS)" "-DCUDA_PTX=$(CUDA12_PTX)" > /dev/null && \
	cmake --build $(BUILD)-cuda12 -j $(JOBS) --target surogate_cuda
	@mkdir -p $(BUILD)
	@cp $(BUILD)-cuda12/libsurogate_cuda12.so $(BUILD)-cuda12/libsurogate_cuda12.link.d $(BUILD)/
	@echo "built $(BUILD)/libsurogate_cuda12.so"

# The comment at the head of this file.
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

rebuild: clean
	@$(MAKE) --no-print-directory build

clean:
	rm -rf $(BUILD)

format:
	@tools/install-deps ci
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

bench: build
	@bench/run $(BUILD)

test-gpu: build
	@$(BUILD)/tests/test_cuda
	@for test in gpu ranks bits curve memory; do SUROGATE=$(abspath $(BUILD))/surogate bash tests/cuda/$$test.t || exit 1; done
	@tools/cuda-stamp write $(BUILD)

gpu-bundle: build
	@tools/gpu-bundle $(BUILD)

release: deps
	@cmake -S . -B $(BUILD)-release $(CMAKE_ARGS) "-DCUDA_ARCHS=80;86;89;90a;100;103;120;121" -DCUDA_PTX=121 > /dev/null
	@cmake --build $(BUILD)-release -j $(JOBS) --target surogate surogate_library surogate_cuda
	@tools/release $(BUILD)-release

# The package depends on Debian's shared libraries instead of containing them.
deb:
	@tools/install-deps deb
	@cmake -S . -B $(BUILD)-deb $(CMAKE_ARGS) -DCUDA=0 -DSHARED_LIBRARIES=ON "-DCMAKE_EXE_LINKER_FLAGS=$(DEB_LDFLAGS)" \
	    "-DCMAKE_SHARED_LINKER_FLAGS=$(DEB_LDFLAGS)" > /dev/null
	@cmake --build $(BUILD)-deb -j $(JOBS) --target surogate surogate_library
	@tools/deb $(BUILD)-deb

# Each target of tests/fuzz runs FUZZ_SECONDS from its seed corpus, two at once.
fuzz:
	@tools/install-deps ci
	@tools/fuzz $(BUILD)-fuzz $(FUZZ_SECONDS)
