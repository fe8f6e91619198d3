"""Numbers of the SPIR-V 1.3 grammar: opcodes and enumerants, as far as the assembler writes them.

Source: "SPIR-V Specification", version 1.3, and "SPIR-V Extended Instructions for GLSL". Data only.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

MAGIC = 0x07230203
VERSION_1_3 = 0x00010300
GLSL_STD_450 = "GLSL.std.450"


class Op(IntEnum):
    """Opcodes (section 3.32)."""

    EXTENSION = 10
    EXT_INST_IMPORT = 11
    EXT_INST = 12
    MEMORY_MODEL = 14
    ENTRY_POINT = 15
    EXECUTION_MODE = 16
    CAPABILITY = 17
    TYPE_VOID = 19
    TYPE_BOOL = 20
    TYPE_INT = 21
    TYPE_FLOAT = 22
    TYPE_VECTOR = 23
    TYPE_IMAGE = 25
    TYPE_ARRAY = 28
    TYPE_RUNTIME_ARRAY = 29
    TYPE_STRUCT = 30
    TYPE_POINTER = 32
    TYPE_FUNCTION = 33
    CONSTANT_TRUE = 41
    CONSTANT_FALSE = 42
    CONSTANT = 43
    CONSTANT_COMPOSITE = 44
    CONSTANT_NULL = 46
    FUNCTION = 54
    FUNCTION_END = 56
    VARIABLE = 59
    LOAD = 61
    STORE = 62
    ACCESS_CHAIN = 65
    DECORATE = 71
    MEMBER_DECORATE = 72
    COMPOSITE_CONSTRUCT = 80
    COMPOSITE_EXTRACT = 81
    COMPOSITE_INSERT = 82
    IMAGE_FETCH = 95
    CONVERT_F_TO_U = 109
    CONVERT_F_TO_S = 110
    CONVERT_S_TO_F = 111
    U_CONVERT = 113
    S_CONVERT = 114
    F_CONVERT = 115
    BITCAST = 124
    S_NEGATE = 126
    F_NEGATE = 127
    I_ADD = 128
    F_ADD = 129
    I_SUB = 130
    F_SUB = 131
    I_MUL = 132
    F_MUL = 133
    U_DIV = 134
    S_DIV = 135
    F_DIV = 136
    LOGICAL_EQUAL = 164
    LOGICAL_NOT_EQUAL = 165
    LOGICAL_OR = 166
    LOGICAL_AND = 167
    LOGICAL_NOT = 168
    SELECT = 169
    I_EQUAL = 170
    I_NOT_EQUAL = 171
    U_GREATER_THAN = 172
    S_GREATER_THAN = 173
    U_GREATER_THAN_EQUAL = 174
    S_GREATER_THAN_EQUAL = 175
    U_LESS_THAN = 176
    S_LESS_THAN = 177
    U_LESS_THAN_EQUAL = 178
    S_LESS_THAN_EQUAL = 179
    F_ORD_EQUAL = 180
    F_UNORD_NOT_EQUAL = 183
    F_ORD_LESS_THAN = 184
    F_ORD_GREATER_THAN = 186
    F_ORD_LESS_THAN_EQUAL = 188
    F_ORD_GREATER_THAN_EQUAL = 190
    SHIFT_RIGHT_LOGICAL = 194
    SHIFT_RIGHT_ARITHMETIC = 195
    SHIFT_LEFT_LOGICAL = 196
    BITWISE_OR = 197
    BITWISE_XOR = 198
    BITWISE_AND = 199
    NOT = 200
    BIT_FIELD_S_EXTRACT = 202
    BIT_FIELD_U_EXTRACT = 203
    CONTROL_BARRIER = 224
    ATOMIC_LOAD = 227
    ATOMIC_XOR = 242
    PHI = 245
    LOOP_MERGE = 246
    SELECTION_MERGE = 247
    LABEL = 248
    BRANCH = 249
    BRANCH_CONDITIONAL = 250
    RETURN = 253
    GROUP_NON_UNIFORM_ELECT = 333
    GROUP_NON_UNIFORM_BROADCAST = 337
    GROUP_NON_UNIFORM_SHUFFLE = 345
    GROUP_NON_UNIFORM_I_ADD = 349
    GROUP_NON_UNIFORM_F_ADD = 350
    GROUP_NON_UNIFORM_I_MUL = 351
    GROUP_NON_UNIFORM_F_MUL = 352
    GROUP_NON_UNIFORM_S_MIN = 353
    GROUP_NON_UNIFORM_U_MIN = 354
    GROUP_NON_UNIFORM_S_MAX = 356
    GROUP_NON_UNIFORM_U_MAX = 357
    S_DOT = 4450
    U_DOT = 4451
    S_U_DOT = 4452
    TYPE_COOPERATIVE_MATRIX_KHR = 4456
    COOPERATIVE_MATRIX_LOAD_KHR = 4457
    COOPERATIVE_MATRIX_STORE_KHR = 4458
    COOPERATIVE_MATRIX_MUL_ADD_KHR = 4459


class Glsl(IntEnum):
    """Instructions of the extended set GLSL.std.450."""

    ROUND_EVEN = 2
    TRUNC = 3
    F_ABS = 4
    FLOOR = 8
    CEIL = 9
    SQRT = 31
    U_MIN = 38
    U_MAX = 41
    F_CLAMP = 43
    FMA = 50
    UNPACK_HALF_2X16 = 62


class Capability(IntEnum):
    SHADER = 1
    FLOAT16 = 9
    INT16 = 22
    INT8 = 39
    SAMPLED_BUFFER = 46
    GROUP_NON_UNIFORM = 61
    GROUP_NON_UNIFORM_ARITHMETIC = 63
    GROUP_NON_UNIFORM_BALLOT = 64
    GROUP_NON_UNIFORM_SHUFFLE = 65
    STORAGE_BUFFER_16BIT_ACCESS = 4433
    STORAGE_BUFFER_8BIT_ACCESS = 4448
    VULKAN_MEMORY_MODEL = 5345
    DOT_PRODUCT_INPUT_4X8BIT_PACKED = 6018
    DOT_PRODUCT = 6019
    COOPERATIVE_MATRIX_KHR = 6022

    @property
    def label(self) -> str:
        """The name in the specification."""
        return "".join(p if p == "KHR" else p.title() for p in self.name.split("_"))


class StorageClass(IntEnum):
    UNIFORM_CONSTANT = 0
    INPUT = 1
    UNIFORM = 2
    WORKGROUP = 4
    FUNCTION = 7
    PUSH_CONSTANT = 9
    STORAGE_BUFFER = 12


class Decoration(IntEnum):
    BLOCK = 2
    ARRAY_STRIDE = 6
    BUILT_IN = 11
    ALIASED = 20
    COHERENT = 23
    NON_WRITABLE = 24
    BINDING = 33
    DESCRIPTOR_SET = 34
    OFFSET = 35
    NO_CONTRACTION = 42


class BuiltIn(IntEnum):
    WORKGROUP_ID = 26
    LOCAL_INVOCATION_ID = 27
    NUM_SUBGROUPS = 38
    SUBGROUP_ID = 40
    SUBGROUP_LOCAL_INVOCATION_ID = 41

    @property
    def is_scalar(self) -> bool:
        """Whether the built-in is a single u32, as those of subgroups are, and not a vector of
        three.
        """
        return self.value >= BuiltIn.NUM_SUBGROUPS


class Scope(IntEnum):
    DEVICE = 1
    WORKGROUP = 2
    SUBGROUP = 3
    QUEUE_FAMILY = 5


class LoopControl(IntEnum):
    NONE = 0
    DONT_UNROLL = 2


class MemorySemantics(IntEnum):
    """Bits of SPIR-V's memory semantics; RELAXED has none of them set."""

    RELAXED = 0
    ACQUIRE_RELEASE = 0x8
    UNIFORM_MEMORY = 0x40
    WORKGROUP_MEMORY = 0x100


class MemoryOperands(IntFlag):
    """SPIR-V memory operands in Vulkan's memory model; a scope follows each of the first two."""

    MAKE_POINTER_AVAILABLE = 0x8
    MAKE_POINTER_VISIBLE = 0x10
    NON_PRIVATE_POINTER = 0x20


class MatrixUse(IntEnum):
    A = 0
    B = 1
    ACCUMULATOR = 2


class MatrixOperands(IntFlag):
    """Which matrices of a product have signed integers."""

    NONE = 0
    A_SIGNED = 1
    B_SIGNED = 2
    C_SIGNED = 4
    RESULT_SIGNED = 8


# What SPIR-V 1.3 has as extensions only.
EXTENSIONS = {
    Capability.COOPERATIVE_MATRIX_KHR: "SPV_KHR_cooperative_matrix",
    Capability.VULKAN_MEMORY_MODEL: "SPV_KHR_vulkan_memory_model",
    Capability.STORAGE_BUFFER_8BIT_ACCESS: "SPV_KHR_8bit_storage",
    Capability.DOT_PRODUCT: "SPV_KHR_integer_dot_product",
    Capability.DOT_PRODUCT_INPUT_4X8BIT_PACKED: "SPV_KHR_integer_dot_product",
}

GROUP_OPERATION_REDUCE = 0
PACKED_VECTOR_FORMAT_4X8BIT = 0
ADDRESSING_LOGICAL = 0
MEMORY_MODEL_GLSL450 = 1
MEMORY_MODEL_VULKAN = 3
MATRIX_ROW_MAJOR = 0
MATRIX_COLUMN_MAJOR = 1
EXECUTION_MODEL_GL_COMPUTE = 5
EXECUTION_MODE_LOCAL_SIZE = 17
