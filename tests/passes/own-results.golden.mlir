module {
  func.func @main(%arg0: tensor<i1>, %arg1: tensor<?xf32, #dhlo.shape<["n"]>>) -> (tensor<?xf32, #dhlo.shape<["n"]>>, tensor<1x?xf32, #dhlo.shape<["1", "n"]>>, tensor<2xf32>, tensor<?xf32, #dhlo.shape<["n"]>>, tensor<?xf32, #dhlo.shape<["n"]>>, tensor<?xf32, #dhlo.shape<["n"]>>) {
    %0 = "dhlo.reshape"(%arg1) : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<1x?xf32, #dhlo.shape<["1", "n"]>>
    %1 = "dhlo.weight"() {name_ = "w"} : () -> tensor<2xf32>
    %2 = "dhlo.neg"(%arg1) : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
    %3 = "dhlo.cond"(%arg0) ({
      %8 = "dhlo.exp"(%arg1) : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
      "dhlo.yield"(%8) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> ()
    }, {
      %8 = "dhlo.copy"(%2) : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
      "dhlo.yield"(%8) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> ()
    }) {resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<i1>) -> tensor<?xf32, #dhlo.shape<["n"]>>
    %4 = "dhlo.copy"(%arg1) : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
    %5 = "dhlo.copy"(%0) : (tensor<1x?xf32, #dhlo.shape<["1", "n"]>>) -> tensor<1x?xf32, #dhlo.shape<["1", "n"]>>
    %6 = "dhlo.copy"(%1) : (tensor<2xf32>) -> tensor<2xf32>
    %7 = "dhlo.copy"(%2) : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
    return %4, %5, %6, %2, %7, %3 : tensor<?xf32, #dhlo.shape<["n"]>>, tensor<1x?xf32, #dhlo.shape<["1", "n"]>>, tensor<2xf32>, tensor<?xf32, #dhlo.shape<["n"]>>, tensor<?xf32, #dhlo.shape<["n"]>>, tensor<?xf32, #dhlo.shape<["n"]>>
  }
}
