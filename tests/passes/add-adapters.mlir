!x = tensor<1x?x8xf32, #dhlo.shape<["1", "t", "8"]>>
!y = tensor<1x?x6xf32, #dhlo.shape<["1", "t", "6"]>>
!pool = tensor<1x?x8xf32, #dhlo.shape<["1", "p", "8"]>>
!t = tensor<?xi64, #dhlo.shape<["t"]>>

module attributes {dhlo.lora = {adapters = 3 : i64, rank = 5 : i64, targets = ["q_proj", "o_proj"]}} {
  // Two products that names choose, one of them of a weight that is dequantised; the third is left alone.
  func.func @step(%x: !x, %pool: !pool {dhlo.paged = "pool 0"}, %slots: !t {dhlo.paged = "slots 0"}, %tables: tensor<?x?xi32, #dhlo.shape<["b", "m"]>> {dhlo.paged = "tables 0"}, %starts: tensor<?xi32, #dhlo.shape<["b + 1"]>> {dhlo.paged = "starts"}, %lengths: tensor<?xi32, #dhlo.shape<["b"]>> {dhlo.paged = "lengths"}) -> (!y, !y, !x, !pool {dhlo.argument = 1 : i64}) attributes {dhlo.blocks = array<i64: 16, 0>} {
    %q = "dhlo.weight"() {name_ = "layers.0.q_proj.weight"} : () -> tensor<6x8xf32>
    %qt = "dhlo.transpose"(%q) {perm = [1, 0]} : (tensor<6x8xf32>) -> tensor<8x6xf32>
    %a = "dhlo.matmul"(%x, %qt) : (!x, tensor<8x6xf32>) -> !y
    %k = "dhlo.weight"() {name_ = "layers.0.k_proj.weight"} : () -> tensor<8x6xf32>
    %b = "dhlo.matmul"(%x, %k) : (!x, tensor<8x6xf32>) -> !y
    %codes = "dhlo.weight"() {name_ = "layers.0.o_proj.codes"} : () -> tensor<8x8xi8>
    %scale = "dhlo.weight"() {name_ = "layers.0.o_proj.scale"} : () -> tensor<8x8xf32>
    %wide = "dhlo.convert"(%codes) : (tensor<8x8xi8>) -> tensor<8x8xf32>
    %o = "dhlo.mul"(%wide, %scale) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %c = "dhlo.matmul"(%x, %o) : (!x, tensor<8x8xf32>) -> !x
    %new = "dhlo.scatter"(%pool, %slots, %c) {at = 1 : i64, dims = [1], how = "set", wrap = false} : (!pool, !t, !x) -> !pool
    return %a, %b, %c, %new : !y, !y, !x, !pool
  }
}
