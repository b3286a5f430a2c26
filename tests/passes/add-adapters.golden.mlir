module {
  func.func @step(%arg0: tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, %arg1: tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>> {dhlo.paged = "pool 0"}, %arg2: tensor<?xi64, #dhlo.shape<["t"]>> {dhlo.paged = "slots 0"}, %arg3: tensor<?x?xi32, #dhlo.shape<["b", "m"]>> {dhlo.paged = "tables 0"}, %arg4: tensor<?xi32, #dhlo.shape<["b + 1"]>> {dhlo.paged = "starts"}, %arg5: tensor<?xi32, #dhlo.shape<["b"]>> {dhlo.paged = "lengths"}, %arg6: tensor<?xi32, #dhlo.shape<["t"]>> {dhlo.name = "adapters"}, %arg7: tensor<3x256xf32> {dhlo.name = "adapter_weights"}) -> (tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>> {dhlo.argument = 1 : i64}) attributes {dhlo.adapted = [{inputs = 8 : i64, name = "layers.0.q_proj", offset = 0 : i64, outputs = 6 : i64}, {inputs = 8 : i64, name = "layers.0.o_proj", offset = 128 : i64, outputs = 8 : i64}], dhlo.adapters = array<i64: 6, 7, 8>, dhlo.blocks = array<i64: 16, 0>} {
    %0 = "dhlo.weight"() {name_ = "layers.0.q_proj.weight"} : () -> tensor<6x8xf32>
    %1 = "dhlo.transpose"(%0) {perm = [1, 0]} : (tensor<6x8xf32>) -> tensor<8x6xf32>
    %2 = "dhlo.matmul"(%arg0, %1) : (tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<8x6xf32>) -> tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
    %3 = "dhlo.adapt"(%2, %arg0, %arg7, %arg6) {at = [0], columns = [6], rank = 8 : i64} : (tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<3x256xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
    %4 = "dhlo.weight"() {name_ = "layers.0.k_proj.weight"} : () -> tensor<8x6xf32>
    %5 = "dhlo.matmul"(%arg0, %4) : (tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<8x6xf32>) -> tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
    %6 = "dhlo.weight"() {name_ = "layers.0.o_proj.codes"} : () -> tensor<8x8xi8>
    %7 = "dhlo.weight"() {name_ = "layers.0.o_proj.scale"} : () -> tensor<8x8xf32>
    %8 = "dhlo.convert"(%6) : (tensor<8x8xi8>) -> tensor<8x8xf32>
    %9 = "dhlo.mul"(%8, %7) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %10 = "dhlo.matmul"(%arg0, %9) : (tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<8x8xf32>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
    %11 = "dhlo.adapt"(%10, %arg0, %arg7, %arg6) {at = [128], columns = [8], rank = 8 : i64} : (tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<3x256xf32>, tensor<?xi32, #dhlo.shape<["t"]>>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
    %12 = "dhlo.scatter"(%arg1, %arg2, %11) {at = 1 : i64, dims = [1], how = "set", wrap = false} : (tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>, tensor<?xi64, #dhlo.shape<["t"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>) -> tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>
    return %3, %5, %11, %12 : tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>, tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>
  }
}
