module {
  // A state that is written over, a segment of known sizes with a workspace, one for what is counted, and an output.
  func.func @main(%arg0: tensor<?x8xf32, #dhlo.shape<["n", "8"]>> {dhlo.name = "x"}, %arg1: tensor<8xf32> {dhlo.name = "new"}) -> (tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<4x8xf32> {dhlo.state = "c"}) {
    "dhlo.check_type"(%arg0) {input = 0 : i64, name_ = "x"} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> ()
    "dhlo.check_type"(%arg1) {input = 1 : i64, name_ = "new"} : (tensor<8xf32>) -> ()
    "dhlo.size"(%arg0) {dim = 0 : i64, symbol = "dim0_0"} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> ()
    "dhlo.size"(%arg0) {dim = 1 : i64, symbol = "dim0_1"} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> ()
    "dhlo.size"(%arg1) {dim = 0 : i64, symbol = "dim1_0"} : (tensor<8xf32>) -> ()
    "dhlo.solve"() {unknown = "n", value = "dim0_0"} : () -> ()
    "dhlo.check"() {expected = "8", got = "dim0_1", how = "equal", input = 0 : i64, text = "'x' dim 1 must be 8"} : () -> ()
    "dhlo.check"() {expected = "8", got = "dim1_0", how = "equal", input = 1 : i64, text = "'new' dim 0 must be 8"} : () -> ()
    "dhlo.stage"(%arg0) {free = [], input = 0 : i64} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> ()
    "dhlo.stage"(%arg1) {free = [], input = 1 : i64} : (tensor<8xf32>) -> ()
    %0 = "dhlo.state"() {name_ = "c"} : () -> tensor<4x8xf32>
    %1 = "dhlo.group"() ({
      %5 = "dhlo.reshape"(%arg1) : (tensor<8xf32>) -> tensor<1x8xf32>
      %6 = "dhlo.update_slice"(%0, %5) {starts = ["1", "0"]} : (tensor<4x8xf32>, tensor<1x8xf32>) -> tensor<4x8xf32>
      "dhlo.yield"(%6) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>) -> ()
    }) {anchor = "opaque", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<4x8xf32>
    %2 = "dhlo.group"() ({
      %5 = "dhlo.reduce"(%arg0) {dims = [1], how = "sum"} : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
      "dhlo.yield"(%5) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> ()
    }) {anchor = "reduction", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, workspace = "4*n"} : () -> tensor<?xf32, #dhlo.shape<["n"]>>
    "dhlo.count_nonzero"(%2) {symbol = "u0"} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> ()
    %3 = "dhlo.fill_nonzero"(%2) {number = "u0"} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?x1xi64, #dhlo.shape<["u0", "1"]>>
    %4 = "dhlo.group"() ({
      %5 = "dhlo.reshape"(%3) : (tensor<?x1xi64, #dhlo.shape<["u0", "1"]>>) -> tensor<?xi64, #dhlo.shape<["u0"]>>
      %6 = "dhlo.add"(%5, %5) : (tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<?xi64, #dhlo.shape<["u0"]>>) -> tensor<?xi64, #dhlo.shape<["u0"]>>
      "dhlo.yield"(%6) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?xi64, #dhlo.shape<["u0"]>>) -> ()
    }) {anchor = "loops", resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?xi64, #dhlo.shape<["u0"]>>
    "dhlo.update_state"(%1) {name_ = "c"} : (tensor<4x8xf32>) -> ()
    return %4, %1 : tensor<?xi64, #dhlo.shape<["u0"]>>, tensor<4x8xf32>
  }
}
