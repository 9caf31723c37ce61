/* In place of the file of this name, which NVIDIA ships with its compiler and not with the runtime. */
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define CUDARTAPI
#define __host__
#define __device__
#define __specialization_static
